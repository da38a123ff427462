"""Tables of structured codes: those that pass, those that stay, and those treated separately.

A code is `FAMILY:VALUE`, as `structured_codes.py` finds it; `*` matches anything. A code that is in
no table decides nothing: then the rules about types and words judge the error. 409 and gRPC's
UNKNOWN and INTERNAL are left out on purpose: such a failure is restarted and its signature
compared.
"""

from __future__ import annotations

_CREDENTIALS_S3 = (
    # https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html, and STS' common errors
    "s3:ExpiredToken*",
    "s3:InvalidAccessKeyId",
    "s3:InvalidClientTokenId",
    "s3:InvalidToken",
    "s3:SignatureDoesNotMatch",
    "s3:TokenRefreshRequired",
    "s3:UnrecognizedClientException",
)

CREDENTIALS = (
    # RFC 9110, 15.5.2 and 15.5.8; the gRPC status code guide
    "http:401",
    "http:407",
    "grpc:UNAUTHENTICATED",
    "azure:AuthenticationFailed",
    # A signed URL has expired, or its signer may not read the object:
    # https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-presigned-url.html
    "http:403-signed",
    # Appendix A of the PostgreSQL manual: 28P01
    "sqlstate:28P01",
    "pg:InvalidPassword",
    # https://redis.io/docs/latest/commands/auth/: NOAUTH and WRONGPASS, and redis-py's type of both
    "redis:NOAUTH",
    "redis:WRONGPASS",
    "redis:Authentication",
    # ERROR_CODE_TO_HTTP_STATUS of mlflow/exceptions.py: 401
    "mlflow:UNAUTHENTICATED",
    "mlflow:CUSTOMER_UNAUTHORIZED",
    "wandb:no-key",
    *_CREDENTIALS_S3,
)
"""Our credentials are rejected, or are no longer accepted."""

QUOTA = (
    # https://cloud.google.com/storage/docs/json_api/v1/status-codes; RFC 9110, 15.5.3
    "http:402",
    "reason:quotaExceeded",
    "reason:dailyLimitExceeded",
    "reason:billing*",
    "s3:*QuotaExceeded*",
    "s3:TooManyBuckets",
)
"""A quota is used up, or a payment is missing."""

SERVER_FULL = ("http:507", "pg:DiskFull")
"""A server has no room left: RFC 4918, 11.5, and the name that PostgreSQL has for it."""

_PG_PASSING = (
    "AdminShutdown CrashShutdown CannotConnectNow QueryCanceled DeadlockDetected "
    "SerializationFailure TooManyConnections OutOfMemory ConnectionFailure "
    "ConnectionDoesNotExist LockNotAvailable IdleInTransactionSessionTimeout IdleSessionTimeout"
)

_REDIS_PASSING = (
    # server.c (createSharedObjects), cluster.c and config.c of Redis, and redis-py's types: the
    # server starts, hands over, is busy, lacks memory, disk or replicas for now, or slots move
    "LOADING BUSY MASTERDOWN CLUSTERDOWN READONLY OOM MISCONF NOREPLICAS UNKILLABLE "
    "BusyLoading MasterDown ClusterDown TryAgain Moved ReadOnly MaxClients"
)
_MLFLOW_PASSING = (
    # ERROR_CODE_TO_HTTP_STATUS of mlflow/exceptions.py: 5xx and 429
    "INTERNAL_ERROR TEMPORARILY_UNAVAILABLE DEADLINE_EXCEEDED REQUEST_LIMIT_EXCEEDED "
    "RESOURCE_EXHAUSTED CANCELLED"
)

RATE_LIMIT = (
    # https://cloud.google.com/storage/docs/json_api/v1/status-codes and Google's AIP-193
    "reason:rateLimitExceeded",
    "reason:userRateLimitExceeded",
    "reason:RATE_LIMIT_EXCEEDED",
)
"""Too many requests in a short time, whatever the status is."""

PASSING = (
    # RFC 9110, 15.6; 425: RFC 8470; 429: RFC 6585; 423: RFC 4918; 520 to 525 and 530: Cloudflare;
    # 529: overloaded sites; 599: tornado, for a timeout
    *(f"http:{status}" for status in (408, 421, 423, 425, 429, 500, 502, 503, 504, 509)),
    *(f"http:{status}" for status in (*range(520, 526), 529, 530, 599)),
    "http:499",  # a call that was cancelled, as google.api_core numbers it
    # A precondition fails if an earlier try succeeded unnoticed, or another client was faster.
    "http:412",
    # Kubernetes' API conventions ("Response Status Kind"): the client lists again or tries again
    "reason:Expired",
    "reason:Gone",
    "reason:Conflict",
    # The retried codes of botocore/retries/standard.py, and S3's own (ErrorResponses.html)
    "s3:*Throttl*",
    "s3:RequestTimeout*",
    "s3:PriorRequestNotComplete",
    "s3:TooManyRequests*",
    "s3:ProvisionedThroughputExceeded*",
    "s3:TransactionInProgress*",
    "s3:RequestLimitExceeded",
    "s3:BandwidthLimitExceeded",
    "s3:LimitExceededException",
    "s3:SlowDown*",
    "s3:InternalError",
    "s3:InternalFailure",
    "s3:ServiceUnavailable",
    "s3:OperationAborted",
    "s3:BadDigest",
    "s3:IncompleteBody",
    "s3:XAmzContentSHA256Mismatch",
    # The AWS SDK for JavaScript retries its CLOCK_SKEW_ERROR_CODES: it corrects for the clock
    "s3:RequestTimeTooSkewed",
    # https://learn.microsoft.com/rest/api/storageservices/common-rest-api-error-codes
    "azure:ServerBusy",
    "azure:InternalError",
    "azure:OperationTimedOut",
    "azure:Md5Mismatch",
    "s3:NetworkConnection",
    # errno(3): the network, a mount or a server is gone or slow; ESTALE and EREMOTEIO: NFS
    *(f"errno:{number}" for number in (4, 5, 26, 37, 62, 64, 67, 70, 71, 85)),
    *(f"errno:{number}" for number in (100, 101, 102, 103, 104, 105, 107, 108, 110, 111)),
    *(f"errno:{number}" for number in (112, 113, 114, 115, 116, 121)),
    # Linux include/linux/errno.h, "should never be seen by user programs": ERESTARTSYS,
    # EBADHANDLE, EBADCOOKIE and EJUKEBOX come from FUSE and NFS
    *(f"errno:{number}" for number in (512, 521, 523, 528)),
    "errno:-3",  # EAI_AGAIN of getaddrinfo(3)
    # libcurl-errors(3): resolve, connect, HTTP/2, partial, timeout, TLS handshake, send, receive
    *(f"curl:{number}" for number in (5, 6, 7, 16, 18, 28, 35, 52, 55, 56, 92)),
    # Appendix A of the PostgreSQL manual: the classes 53 and 57, and its names of errors
    *(f"sqlstate:{state}*" for state in ("53", "57")),
    *(f"pg:{name}" for name in _PG_PASSING.split()),
    # MySQL's error reference: lost connections, shutdown, locks, too many clients, a failover
    *(f"mysql:{number}" for number in (1040, 1041, 1053, 1129, 1158, 1159, 1160, 1161, 1203)),
    *(f"mysql:{number}" for number in (1205, 1213, 1290, 1317, 1836, 2002, 2003, 2006, 2013)),
    *(f"mysql:{number}" for number in (2014, 2055, 3024, 3032)),
    # The retryable codes of MongoDB's "Retryable Writes" and "Server Discovery" specifications
    *(f"mongo:{number}" for number in (6, 7, 43, 50, 64, 89, 91, 112, 134, 189, 262, 9001)),
    *(f"mongo:{number}" for number in (10107, 11600, 11602, 13435, 13436)),
    *(f"redis:{name}" for name in _REDIS_PASSING.split()),
    *(f"mlflow:{name}" for name in _MLFLOW_PASSING.split()),
    # https://sqlite.org/rescode.html: another process uses the file, or the disk did not answer
    *(f"sqlite:{name}" for name in ("BUSY", "LOCKED", "PROTOCOL", "IOERR")),
)
"""Another try may succeed: the server, the network or another client was in the way."""

RPC_PASSING = (
    # https://grpc.io/docs/guides/status-codes/ and its guide to retries
    "grpc:UNAVAILABLE",
    "grpc:ABORTED",
    "grpc:DEADLINE_EXCEEDED",
    "grpc:CANCELLED",
    "grpc:RESOURCE_EXHAUSTED",
)
"""Another try of the call may succeed. The process called may be a lost worker of this job."""

STAYING = (
    # RFC 9110, 15.5: the request itself is refused
    *(f"http:{status}" for status in (400, 403, 404, 405, 406, 410, 411, 413, 414, 415)),
    *(f"http:{status}" for status in (416, 422, 426, 431, 451, 501, 505)),
    "reason:AlreadyExists",
    # https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
    "s3:NoSuchBucket*",
    "s3:NoSuchKey",
    "s3:NoSuchVersion",
    "s3:*AccessDenied*",
    "s3:AllAccessDisabled",
    "s3:AccountProblem",
    "s3:Invalid*",
    "s3:Malformed*",
    "s3:BucketAlready*",
    "s3:MethodNotAllowed",
    "s3:NotImplemented",
    "s3:PermanentRedirect",
    "s3:AuthorizationHeaderMalformed",
    "s3:EntityTooLarge",
    "s3:KeyTooLong*",
    # https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes
    "azure:AuthorizationFailure",
    "azure:AuthorizationPermissionMismatch",
    "azure:AccountIsDisabled",
    "azure:*NotFound",
    "azure:Invalid*",
    "azure:*AlreadyExists",
    # libcurl-errors(3): a scheme, a URL or a certificate that is wrong
    *(f"curl:{number}" for number in (1, 3, 60, 77)),
    # Appendix A of the PostgreSQL manual: data, names, syntax, permissions, missing objects
    *(f"sqlstate:{state}*" for state in ("28", "3D", "3F", "42")),
    "pg:Undefined*",
    "pg:Invalid*",
    "pg:Duplicate*",
    "pg:Ambiguous*",
    "pg:*Violation",
    "pg:*Syntax*",
    "pg:*Mismatch",
    "pg:InsufficientPrivilege",
    "pg:FeatureNotSupported",
    "pg:NumericValueOutOfRange",
    "pg:StringDataRightTruncation",
    # MySQL's error reference: logins, names, syntax and keys
    *(f"mysql:{number}" for number in (1044, 1045, 1046, 1048, 1049, 1050, 1054, 1062)),
    *(f"mysql:{number}" for number in (1064, 1136, 1142, 1146, 1227, 1364)),
    *(f"mysql:{number}" for number in (1366, 1406, 1451, 1452, 2059)),
    # MongoDB's error codes: arguments, names, permissions, duplicate keys
    *(f"mongo:{number}" for number in (2, 9, 13, 18, 26, 59, 121, 8000)),
    "mongo:11000",
    "ssl:CERTIFICATE_VERIFY_FAILED",
    # https://redis.io/docs/latest/commands/: the type of a key, a permission, a script, a group
    *(f"redis:{name}" for name in ("WRONGTYPE", "NOPERM", "CROSSSLOT", "DENIED")),
    *(f"redis:{name}" for name in ("BUSYGROUP", "NOGROUP")),
    *(f"redis:{name}" for name in ("NoPermission", "NoScript", "ClusterCrossSlot")),
    # ERROR_CODE_TO_HTTP_STATUS of mlflow/exceptions.py: 400, 403, 404
    *(f"mlflow:{name}" for name in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "NOT_FOUND")),
    *(f"mlflow:RESOURCE_{state}" for state in ("DOES_NOT_EXIST", "ALREADY_EXISTS")),
    *(f"mlflow:{name}" for name in ("PERMISSION_DENIED", "ENDPOINT_NOT_FOUND")),
    # https://sqlite.org/rescode.html: the statement, the permissions or the file itself is wrong
    *(f"sqlite:{name}" for name in ("ERROR", "READONLY", "CORRUPT", "NOTADB")),
)
"""The same request will be refused again, as far as its code shows."""

RPC_STAYING = (
    # https://grpc.io/docs/guides/status-codes/: the same call must not be tried again
    "grpc:INVALID_ARGUMENT",
    "grpc:NOT_FOUND",
    "grpc:ALREADY_EXISTS",
    "grpc:PERMISSION_DENIED",
    "grpc:FAILED_PRECONDITION",
    "grpc:OUT_OF_RANGE",
    "grpc:UNIMPLEMENTED",
)
"""The same call to another process will be refused again."""
