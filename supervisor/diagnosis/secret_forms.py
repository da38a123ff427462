"""The forms of secrets in a text, as a table: one row for each kind.

The forms of tokens that services issue follow the plugins of detect-secrets (Yelp, 1.5.0) and the
issuers' own pages. The forms of values behind a name are our own: detect-secrets looks for one
finding in a line of source code, we remove all secrets from any text.

Each pattern takes time linear in the length of any text: it begins at a word that only secrets
have, all repetitions are bounded or possessive, and no two of them can match the same characters. A
row is tried only if the text contains one of its hints, so an ordinary line costs only a search for
some words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from supervisor.config.secret_names import REDACTED as REDACTED


@dataclass(frozen=True, slots=True)
class Form:
    """One kind of secret. The group `keep` of a match stays in the text; the rest is replaced."""

    name: str
    hints: tuple[str, ...]
    """Strings in lower case, one of which is in every text that holds such a secret."""
    pattern: re.Pattern[str]
    unmistakable: bool = False
    """Whether it is a secret everywhere, also among the values that a trainer reads."""


def _token(name: str, hints: str, pattern: str) -> Form:
    return Form(name, tuple(hints.split()), re.compile(pattern, re.DOTALL), unmistakable=True)


def _behind(name: str, hints: str, keep: str, value: str, flags: int = re.IGNORECASE) -> Form:
    pattern = rf"(?P<keep>{keep})(?!{re.escape(REDACTED)}){value}"
    return Form(name, tuple(hints.split()), re.compile(pattern, flags | re.VERBOSE))


_OPEN = r"""[ \t]*+(?:[bruf]{1,2}(?=["']))?+(?P<e>\\++(?=["']))?+(?P<q>["'])?+"""
_IS = rf"""\d?\\*["']?\]?[ \t]*(?>:=|=>|={{1,3}}|:)(?!:){_OPEN}"""
"""The text between a name and its value, in code, YAML, JSON, headers and shells."""
_EQUALS = rf"""(?:\\*["']\]?[ \t]*(?>:|={{1,3}})|[ \t]*={{1,3}}+){_OPEN}"""
"""The same after a name that is also an English word: `AUTH: done` is no assignment."""
_VALUE = r"""(?!(?i:none|null|true|false)\b|\*+(?:\s|$)
        |(?:No[ ]such[ ]file|(?:Is|Not)[ ]a[ ]directory|File[ ]exists|Permission[ ]denied
        |Operation[ ]not[ ]permitted|Input/output[ ]error|Read-only[ ]file[ ]system)\b)
    (?(e)[^\\"'\r\n]++|(?(q)(?:(?!(?P=q))[^\\\r\n]|\\.)++|[^\s"'`]++))"""
"""A value. In quotes it ends at the closing quote (escaped as the opening one), else at a space or
quote. An error message of the C library (`/etc/passwd: Permission denied`) is no value."""
_REST_OF_LINE = r"[^\r\n]++"


def _preceded(core: str, words: str) -> str:
    """Returns a pattern for use after `core`: one of `words` is before it, with _, - or nothing
    between."""
    return "|".join(rf"(?<={word}[_-]{core})|(?<={word}{core})" for word in words.split())


_KEYS = _preceded(
    "key",
    "api access account auth aws client database db encryption master priv private service session "
    "shared signing storage subscription",
)
_TOKENS = _preceded(
    "token",
    "access api auth bearer bot deploy github gitlab hub identity jwt oauth private refresh "
    "registration sas security session slack user vault wandb",
)
_PASSES = _preceded(
    "pass",
    "account admin database db ftp ldap mail mongo mysql pg postgres proxy redis root smtp ssh "
    "user",
)
_NAMES = rf"""[pPsSkKtTcC](?i:(?<=p)ass(?:w(?:or)?d|phrase|(?![a-z])(?:{_PASSES}))
    |(?<=s)ecret(?:[_-]?access)?(?:[_-]?(?:key|token|value))?
    |(?<=k)ey(?:{_KEYS})
    |(?<=t)oken(?:{_TOKENS}|(?<![a-z]id.token)(?<=id[_-]token)|(?<![a-z]hf.token)(?<=hf[_-]token))
    |(?<=c)onnection[_-]?string)"""
"""It begins with a set of letters: the search looks for these, and for words only behind them."""
_FLAG_NAMES = r"(?:token|[-_]key|secret|passw(?:or)?d|passphrase|[-_]pass|[-_]pwd|[-_]auth|cookie)"

FORMS: tuple[Form, ...] = (
    _token(
        "private key",
        "-----begin putty-user-key",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:(?!-----END).)*+"
        r"(?:-----END [A-Z0-9 ]{0,40}KEY(?: BLOCK)?-----)?|PuTTY-User-Key-File-\d.*+",
    ),
    _token("Hugging Face", "hf_", r"\bhf_[A-Za-z0-9]{16,}"),
    _token(
        "GitHub",
        "gh github_pat_",
        r"\b(?:gh[pousr]_(?:[A-Za-z0-9]{16,}|\w{36,})|github_pat_\w{16,})",
    ),
    _token(
        "GitLab",
        "gl gr1348941",
        r"\b(?:gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas)-|GR1348941)[\w-]{16,}",
    ),
    _token("Slack", "xox xapp-", r"\b(?:(?i:xox[a-z](?:\.xox[a-z])?)-[\w-]{8,}|xapp-\d-[\w-]{8,})"),
    _token(
        "AWS key id",
        "akia asia abia acca a3t",
        r"\b(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[A-Z0-9]{12,}",
    ),
    _token(
        "Google",
        "aiza ya29. gocspx- 1//0",
        r"\b(?:AIza[\w-]{30,}|ya29\.[\w.-]{8,}|GOCSPX-[\w-]{20,}|1//0[\w-]{20,})",
    ),
    _token("OpenAI, Anthropic", "sk-", r"\bsk-(?=[a-zA-Z_-]{0,64}\d)[\w-]{16,}"),
    _token("Stripe", "_live_ _test_", r"\b(?:sk|rk|whsec)_(?:live|test)_[0-9A-Za-z]{16,}"),
    _token(
        "package registry",
        "npm_ pypi- _authtoken",
        r"\b(?:npm_[A-Za-z0-9]{30,}|pypi-[\w-]{50,})|(?<=:_authToken=)[^\s\"']+",
    ),
    _token("SendGrid", "sg.", r"\bSG\.[\w-]{16,32}\.[\w-]{32,64}"),
    _token("Twilio", "sk ac", r"\b(?:SK|AC)[0-9a-z]{32}\b"),
    _token("Telegram", ":", r"\b\d{8,10}:[\w-]{35}(?![\w-])"),
    _token("Discord", ".", r"(?<![\w.-])[MNO][A-Za-z\d_-]{23,25}\.[\w-]{6}\.[\w-]{27,38}(?![\w-])"),
    _token("Mailchimp", "-us", r"\b[0-9a-z]{32}-us\d{1,2}\b"),
    _token("Square", "sq0", r"\bsq0(?:csp|atp)-[\w-]{20,}"),
    _token(
        "Artifactory", "akc ap", r"(?<![\w/+])(?:AKC[a-zA-Z0-9]{20,}|AP[\dA-F][a-zA-Z0-9]{30,})"
    ),
    _token(
        "Databricks, DigitalOcean", "dapi do", r"\b(?:dapi[0-9a-f]{32}|do[opr]_v1_[0-9a-f]{64})"
    ),
    _token("JSON Web Token", "eyj", r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    _behind(
        "webhook",
        "hooks.slack.com /api/webhooks/ webhook.office.com api.telegram.org",
        r"https?://(?:hooks\.slack(?:-gov)?\.com/[a-z]+/|discord(?:app)?\.com/api/webhooks/"
        r"|[\w.-]{0,80}webhook\.office\.com/\w+/|api\.telegram\.org/(?:file/)?bot)",
        r"""[^\s"'<>]++""",
    ),
    _behind(
        "user and password in a URL",
        "://",
        r"://",
        # The userinfo of RFC 3986, up to its last @. Also a password with / ? or # in it, which the
        # RFC forbids and people write (a colon with digits is a port).
        r"""(?!git@)(?:[^\s/?\#"']{1,4096}(?=@)
            |[^\s/@:"']{0,256}:(?!\d{1,5}(?:[/?\#\s]|$))[^\s@"']{0,512}(?=@))""",
    ),
    _behind(
        "signed URL, or a secret in its query",
        "= %3d",
        r"""(?:[?&;]|%26|%3F)(?:x-amz-(?:signature|credential|security-token)|sig|signature
            |x-goog-(?:signature|credential)|awsaccesskeyid|googleaccessid|key|pass|auth
            |(?:[\w.-]{1,40}[_.-])?(?:token|secret|password|passwd|pwd|api_?key|access_?key))
            (?:=|%3D)""",
        r"""[^\s&\#"'<>;]++""",
    ),
    _behind("shared access signature", "sig=", r"(?<![\w-])sig=", r"[A-Za-z0-9%+/=_-]{20,}"),
    _behind(
        "signed header",
        "authorization",
        r"""authorization\\*["']?[ \t]*[:=][ \t]*(?:b?["'])?
            (?:digest|oauth|signature|hmac|aws4-[\w-]{1,20})[ \t]+""",
        _REST_OF_LINE,
    ),
    _behind(
        "authorization header",
        "authorization",
        r"""authorization\\*["']?[ \t]*[:=][ \t]*(?:b?["'])?(?:[a-z][\w-]{0,30}[ \t]+)?+""",
        r"""[^\s"',;]++""",
    ),
    _behind("bearer token", "bearer", r"\bbearer[ \t]+", r"""[\w.~+/=-]{16,}"""),
    _behind(
        "cookie header",
        "cookie",
        r"""(?<![\w-])(?:set-)?cookie\\*["']?[ \t]*:[ \t]*+["']?+""",
        r"""[^\r\n"']++""",
    ),
    _behind(
        "value behind a name that says so",
        "passw pass secret string key token",
        rf"{_NAMES}{_IS}",
        _VALUE,
        flags=0,
    ),
    _behind("pwd", "pwd", rf"(?<![a-z])pwd{_EQUALS}", rf"(?!~|\.{{0,2}}/){_VALUE}"),
    _behind(
        "token=",
        "token",
        rf"(?<![\w])token{_EQUALS}",
        r"""(?=[^\s"'`]{0,200}\d)[\w.~+/=-]{12,}""",
    ),
    _behind(
        "environment variable",
        "_token token= key secret _pass _pwd _auth _cookie _dsn _pat _credential",
        rf"""(?<=[A-Z0-9])(?:(?<!EOS)(?<!BOS)(?<!PAD)(?<!UNK)(?<!SEP)(?<!CLS)(?<!MASK)_TOKEN
            |(?<!_)TOKEN|_KEY|SECRET|_PASS|_PWD|_AUTH|_COOKIES?|_DSN|_PAT|_CREDENTIALS?){_IS}""",
        _VALUE,
        flags=0,
    ),
    _behind(
        "environment variable of one word",
        "token pass auth cookie key secret dsn _ur",
        rf"""(?<![A-Za-z0-9_])(?:TOKEN|PASS|PGPASS|AUTH|COOKIES?|KEY|SECRET|DSN
            |(?:DATABASE|DB|REDIS|MONGO|MONGODB|POSTGRES|MYSQL|BROKER|AMQP|WEBHOOK)_UR[IL])
            {_EQUALS}""",
        _VALUE,
        flags=0,
    ),
    _behind(
        "flag",
        "-",
        rf"""(?<![\w-])--?[a-z0-9_-]{{0,50}}{_FLAG_NAMES}(?:=|[ \t]+)
            (?P<q>["'])?""",
        r"""(?(q)(?:(?!(?P=q))[^\\\r\n]|\\.)++|(?!-)[^\s"']++)""",
    ),
)
