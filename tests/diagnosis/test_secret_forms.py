"""The table of what secrets look like: each row removes its examples, and leaves plain text alone.

No example is anybody's: each is put together here, so that no scanner of repositories finds one.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.secret_names import is_secret
from supervisor.diagnosis.redaction import Redactor
from supervisor.diagnosis.secret_forms import FORMS, REDACTED

R = REDACTED
HEX = "0a1b2c3d" * 8
WORD = "aB3" * 20
JSON_WEB_TOKEN = "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl"

TOKENS: dict[str, tuple[str, ...]] = {
    "private key": (
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\\nMIIEabc\\n-----END PRIVATE KEY-----",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nabc\n-----END PGP PRIVATE KEY BLOCK-----",
    ),
    "Hugging Face": ("hf_" + "aB3" * 11,),
    "GitHub": ("ghp_" + "x1Y2" * 9, "gho_" + "x1Y2" * 9, "github_pat_" + "a_B1" * 8),
    "GitLab": ("glpat-" + "x1Y2_" * 4, "glrt-" + "x1Y2_" * 4, "GR1348941" + "x1Y2_" * 4),
    "Slack": ("xoxb-" + "123456-" * 3 + "abc", "xapp-1-" + "A123-" * 3),
    "AWS key id": ("AKIA" + "ABCD1234" * 2, "ASIA" + "ABCD1234" * 2),
    "Google": (
        "AIza" + "Sy_-a" * 7,
        "ya29." + "a0-_." * 6 + "x",
        "GOCSPX-" + "a-_B" * 7,
        "1//0" + "aB_-" * 10,
    ),
    "OpenAI, Anthropic": ("sk-proj-" + "abc123" * 6, "sk-ant-api03-" + "aB_-" * 8),
    "Stripe": ("sk_" + "live_" + "aB3" * 8, "rk_" + "test_" + "aB3" * 8),
    "package registry": ("npm_" + "aB3" * 12, "pypi-" + "AgEIcHlwaS5vcmc" + WORD),
    "SendGrid": ("SG." + "a-_B3c" * 4 + "." + "aB3" * 15,),
    "Twilio": ("SK" + HEX[:32],),
    "Telegram": ("123456789:AA" + "aB3" * 11,),
    "Discord": ("MT" + "aB3" * 8 + ".aB3-_c." + "aB3" * 9,),
    "Mailchimp": (HEX[:32] + "-us12",),
    "Square": ("sq0" + "csp-" + "aB3" * 14,),
    "Artifactory": ("AKC" + "p8aB3" * 8,),
    "Databricks, DigitalOcean": ("dapi" + HEX[:32], "dop_v1_" + HEX),
    "JSON Web Token": (JSON_WEB_TOKEN,),
}
"""Where they stand does not matter."""

BEHIND: dict[str, tuple[tuple[str, str], ...]] = {
    "webhook": (
        (
            "POST https://hooks.slack.com/services/T0AB/B0CD/e5Fg failed",
            f"POST https://hooks.slack.com/{'services/'}{R} failed",
        ),
        ("https://api.telegram.org/bot12:ab/getMe", f"https://api.telegram.org/bot{R}"),
    ),
    "user and password in a URL": (
        ("https://me:pass@host/path", f"https://{R}@host/path"),
        ("postgres://u:pa,ss@h/db is away", f"postgres://{R}@h/db is away"),
        ("pip install 'git+https://TOKEN@host/x'", f"pip install 'git+https://{R}@host/x'"),
        ("redis://:hunter2@h:6379/0", f"redis://{R}@h:6379/0"),
        ("ftp://u:p<a>ss@h", f"ftp://{R}@h"),
        ("amqp://u:p@ss@h", f"amqp://{R}@h"),
        ("mysql+pymysql://u:p/a?s#s@h:3306/db", f"mysql+pymysql://{R}@h:3306/db"),
        ("mongodb+srv://u:p%40ss@a.b.net/?x=1", f"mongodb+srv://{R}@a.b.net/?x=1"),
    ),
    "signed URL, or a secret in its query": (
        (
            "GET https://b.s3.amazonaws.com/k?X-Amz-Credential=AKI%2F2&X-Amz-Date=2&"
            "X-Amz-Security-Token=IQo//x&X-Amz-Signature=0a1b HTTP/1.1",
            f"GET https://b.s3.amazonaws.com/k?X-Amz-Credential={R}&X-Amz-Date=2&"
            f"X-Amz-Security-Token={R}&X-Amz-Signature={R} HTTP/1.1",
        ),
        (
            "https://storage.googleapis.com/b/o?X-Goog-Credential=sa&X-Goog-Signature=0a1b&x=1",
            f"https://storage.googleapis.com/b/o?X-Goog-Credential={R}&X-Goog-Signature={R}&x=1",
        ),
        (
            "https://a.blob.core.windows.net/c?sv=2024&sig=aB%2F3%3D&se=2027",
            f"https://a.blob.core.windows.net/c?sv=2024&sig={R}&se=2027",
        ),
        ("https://h/?api_key=abc&q=1", f"https://h/?api_key={R}&q=1"),
        ("https://h/cb?access_token=abc#x", f"https://h/cb?access_token={R}#x"),
        (
            "https://h/o?AWSAccessKeyId=A&Signature=b%3D",
            f"https://h/o?AWSAccessKeyId={R}&Signature={R}",
        ),
        ("next=https%3A%2F%2Fh%3Ftoken%3Dabc", f"next=https%3A%2F%2Fh%3Ftoken%3D{R}"),
    ),
    "shared access signature": (("SAS: sig=aB%2F3aB%2F3aB%2F3aB%2F3%3D", f"SAS: sig={R}"),),
    "signed header": (
        ('Authorization: Digest username="u", response="0a"', f"Authorization: Digest {R}"),
        (
            "authorization: AWS4-HMAC-SHA256 Credential=A/2, Signature=0a1b",
            f"authorization: AWS4-HMAC-SHA256 {R}",
        ),
    ),
    "authorization header": (
        ("Authorization: Basic dXNlcjpwYXNz", f"Authorization: Basic {R}"),
        ("Authorization: Bearer abc.def", f"Authorization: Bearer {R}"),
        (
            "{'Authorization': 'token 0a1b', 'Accept': 'x'}",
            f"{{'Authorization': 'token {R}', 'Accept': 'x'}}",
        ),
        (
            "curl -H 'Proxy-Authorization: Basic eDp5' h",
            f"curl -H 'Proxy-Authorization: Basic {R}' h",
        ),
        ("authorization=abc", f"authorization={R}"),
    ),
    "bearer token": (("sent bearer 0123456789abcdef twice", f"sent bearer {R} twice"),),
    "cookie header": (
        ("Cookie: session=abc; theme=dark", f"Cookie: {R}"),
        ("{'Set-Cookie': 'sid=abc; Path=/'}", f"{{'Set-Cookie': '{R}'}}"),
    ),
    "value behind a name that says so": (
        ("password=hunter2", f"password={R}"),
        (
            "connect(host='h', password='correct horse', port=1)",
            f"connect(host='h', password='{R}', port=1)",
        ),
        ("api_key=abc123", f"api_key={R}"),
        ('{"client_secret": "a\\"b c", "x": 1}', f'{{"client_secret": "{R}", "x": 1}}'),
        ('{\\"password\\": \\"abc\\"}', f'{{\\"password\\": \\"{R}\\"}}'),
        (
            "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=aB3/+==",
            f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={R}",
        ),
        ("spring.datasource.password: hunter2", f"spring.datasource.password: {R}"),
        ("db_pass := 'x y'", f"db_pass := '{R}'"),
        ("accessToken=abc", f"accessToken={R}"),
        ("x-api-key: abc", f"x-api-key: {R}"),
        ("X-Vault-Token: abc", f"X-Vault-Token: {R}"),
        ("aws_secret_access_key = a/b", f"aws_secret_access_key = {R}"),
        ("secret=b'abc'", f"secret=b'{R}'"),
        ("id_token=abc", f"id_token={R}"),
        ('keys["aws_key"] = "abc"', f'keys["aws_key"] = "{R}"'),
    ),
    "pwd": (("Server=h;Uid=sa;Pwd=hunter2", f"Server=h;Uid=sa;Pwd={R}"),),
    "token=": (("token=0123456789abcdef", f"token={R}"),),
    "environment variable": (
        ("WANDB_API_KEY=abc123 python", f"WANDB_API_KEY={R} python"),
        ("{'AWS_SECRET_ACCESS_KEY': 'abc'}", f"{{'AWS_SECRET_ACCESS_KEY': '{R}'}}"),
        ("DB_PASS=abc", f"DB_PASS={R}"),
        ("export MYSQL_PWD='a b'", f"export MYSQL_PWD='{R}'"),
        ("SENTRY_DSN=https://0a1b@o1.ingest.sentry.io/2", f"SENTRY_DSN={R}"),
        ("MY_AUTH: abc", f"MY_AUTH: {R}"),
        ("os.environ['HF_TOKEN'] = 'abc'", f"os.environ['HF_TOKEN'] = '{R}'"),
    ),
    "environment variable of one word": (
        ("PGPASS=h:5432:d:u:p AUTH=abc", f"PGPASS={R} AUTH={R}"),
        ("COOKIE=abc DATABASE_URL=postgres://h/d", f"COOKIE={R} DATABASE_URL={R}"),
        ("{'PASS': 'a b'}", f"{{'PASS': '{R}'}}"),
    ),
    "flag": (
        ("train.py --api-key=abc --x=1", f"train.py --api-key={R} --x=1"),
        ("train.py --password abc --x=1", f"train.py --password {R} --x=1"),
        ("train.py --db-pass 'a b' --x=1", f"train.py --db-pass '{R}' --x=1"),
    ),
}
"""What is redacted of a text, and what stays."""

INNOCENT = [
    "KeyError: 'model.layers.0'",
    "KeyError: 'api_key'",
    "builtins.ValueError: token 17 is not in the vocabulary",
    "ValueError: token id 50257 out of range for vocab_size=50257",
    "throughput: tokens=512, tokens_per_second: 18231.5, num_tokens: 5",
    "eos_token=2 pad_token: '</s>' EOS_TOKEN=2 BOS_TOKEN: <s> token=17 token: pad",
    "author=Ada Lovelace, authors: 3, authenticated: yes, AUTH: done",
    "pass 3 of 5: forward_pass=0.2 backward_pass: 0.4, PASS: test_one, bypass=1, passes=3",
    "train.py --max-tokens 512 --tokenizer sentencepiece --eos_token_id=2 --use-auth-token --x=1",
    "grpc://10.0.0.2:8476 is unavailable: key mismatch",
    "asked to stop by SIGTERM; sk-learn, hf_hub and the ghp_ prefix are no secrets",
    "sk-learn-contrib-lightning-estimators is missing",
    "gs://bucket/path@v2: no such object; http://h:8080/a@b; ssh://git@github.com/x/y",
    "PWD=/home/me OLDPWD=/tmp pwd: /home/me",
    "key=17, keys: [1, 2], PRNGKey(0), key: Array((2,), dtype=uint32), primary_key=id",
    "Bearer of bad news: the basic Authorization failed",
    "api_key::Get, password=None, secret: null, password=***",
    "secret_name=projects/p/secrets/s password_file=/run/x",
    "restored step 150 from /m/checkpoints/150 in 0.29 s; lost work: 20 steps",
    "2026-11-22 09:31:30,123 I1122 09:31:30.123456 140586592308096 trainer.py:65] mesh",
    "sha256:" + HEX + " commit 0a1b2c3d0a1b2c3d0a1b2c3d0a1b2c3d0a1b2c3d",
    "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: ptxas exited with non-zero error code 65280",
    "MNIST_classification_model1.layers.transformer_block_number_three_of_it",
    "sig=SIGTERM signature: ValueError-aa4fd4dfd7d4",
    "/etc/passwd: Permission denied; /run/secrets/db_password: No such file or directory",
    "the user pressed Ctrl-C; session key exchange; cookie cutter; webhooks are off",
]


def test_every_row_has_examples() -> None:
    assert [form.name for form in FORMS] == [*TOKENS, *BEHIND]
    assert [form.name for form in FORMS if form.unmistakable] == [*TOKENS]


@pytest.mark.parametrize("token", [token for each in TOKENS.values() for token in each])
def test_tokens_go_wherever_they_stand(token: str) -> None:
    assert Redactor().text(f"401 for url with '{token}', so") == f"401 for url with '{R}', so"
    params = {"trainer": {"init": {"x": [token]}, "fit": {}}}
    assert Redactor().params(params)["trainer"]["init"] == {"x": [R]}


@pytest.mark.parametrize(("text", "clean"), [pair for each in BEHIND.values() for pair in each])
def test_what_stands_behind_a_name_or_in_a_place_that_says_so_goes(text: str, clean: str) -> None:
    assert Redactor().text(text) == clean
    assert Redactor().text(clean) == clean


@pytest.mark.parametrize(("name", "index"), [(name, i) for i, name in enumerate(FORMS)])
def test_each_row_is_needed(name: object, index: int) -> None:
    """Without it an example of its own is not redacted as it should be."""
    form = FORMS[index]
    texts = TOKENS.get(form.name) or tuple(text for text, _ in BEHIND.get(form.name, ()))
    found = [form.pattern.sub(R, text) != text for text in texts]
    hinted = [any(hint in text.lower() for hint in form.hints) for text in texts]
    assert any(found)
    assert all(hinted[i] for i, one in enumerate(found) if one), "a hint is missing"


@pytest.mark.parametrize("text", INNOCENT)
def test_innocent_text_stays(text: str) -> None:
    assert Redactor().text(text) == text


@pytest.mark.parametrize("corpus", ["failures.jsonl", "provoked.jsonl"])
def test_real_logs_stay(corpus: str) -> None:
    lines = (Path(__file__).parents[1] / "corpus" / corpus).read_text().splitlines()
    texts = [json.loads(line)["stderr"] for line in lines]
    assert len(texts) > 20
    assert [text for text in texts if Redactor().text(text) != text] == []


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        *((name, "x", True) for name in ("DB_PASS", "MYSQL_PWD", "PGPASS", "AUTH", "COOKIE")),
        *((name, "x", True) for name in ("DATABASE_URL", "SENTRY_DSN", "HF_TOKEN", "AccountKey")),
        *((name, "x", True) for name in ("api_key", "--auth-token", "GH_PAT", "SLACK_WEBHOOK")),
        *((name, "x", True) for name in ("OPENAI_KEY_1", "SLACK_TOKEN_BOT", "KEY2_OLD")),
        *((name, "/x", False) for name in ("OPENAI_KEY_FILE", "KEY_1", "TOKEN_DIR")),
        *((name, "x", False) for name in ("EOS_TOKEN_ID", "NUM_KEY_VALUE_HEADS", "TOKEN_TYPES")),
        *((name, "4096", False) for name in ("MAX_TOKEN_LENGTH", "TOKEN_BUDGET", "KEY_1")),
        ("AWS_SECRET_ACCESS_KEY", "/starts/like+a/path", True),
        ("TLS_KEY", "/etc/ssl/server.pem", False),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/etc/key.json", False),
        *((name, "x", False) for name in ("PWD", "PATH", "KEYBOARD", "AUTHOR", "EOS_TOKEN")),
        *((name, "x", False) for name in ("SSH_AUTH_SOCK", "PASSWORD_FILE", "MAX_TOKENS")),
    ],
)
def test_which_variables_are_secret(name: str, value: str, secret: bool) -> None:
    assert is_secret(name, value) is secret


UNITS = [
    *("-", "-----BEGIN ", "-----BEGIN A PRIVATE KEY-----", "A", "a", "a.", "eyJ-", "eyJaaaaaaaa."),
    *("a://:", "://a", "://a:b", "x://@", "--token ", "--token-", "-a-", "sk-", "_KEY=", "\n", '"'),
    *("password=", 'password="', "password='\\", "secret", "passwordsecret", "token=a", "?token="),
    *(
        "?a.",
        "&sig=",
        "Authorization: ",
        "authorization: a ",
        "bearer ",
        "cookie:",
        "\\",
        "'",
        "= ",
    ),
    *(
        "https://hooks.slack.com/",
        "AKIA",
        "1//0",
        "DATABASE_",
        "DB_URL=",
        "AUTH",
        "SG.",
        "0:AA",
        ":",
    ),
]


@pytest.mark.parametrize("unit", UNITS)
def test_no_text_takes_long(unit: str) -> None:
    text = unit * (131072 // len(unit))
    redactor = Redactor({"A_KEY": "12345678"})
    start = time.process_time()
    redactor.text(text)
    assert time.process_time() - start < 1.0


@given(st.lists(st.sampled_from([*UNITS, *"aA0=:@/? \"'"]), max_size=6), st.integers(1, 400))
def test_no_mixture_takes_long(units: list[str], times: int) -> None:
    text = "".join(units) * times
    start = time.process_time()
    Redactor().text(text)
    assert time.process_time() - start < 0.2 + len(text) * 5e-6


@given(st.text(max_size=200), st.sampled_from([t for each in TOKENS.values() for t in each]))
def test_nothing_around_a_token_saves_it(around: str, token: str) -> None:
    assert token not in Redactor().text(f"{around} {token} {around}")


def test_patterns_hold_no_unbounded_repetition_before_their_word() -> None:
    """A star at the beginning would be tried at every character."""
    for form in FORMS:
        assert re.match(r"\(\?P<keep>\(?\??:?\.\*|\.\*|\\S\*|\\w\*", form.pattern.pattern) is None
