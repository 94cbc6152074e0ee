from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SiteFrame(_message.Message):
    __slots__ = ("hello", "beat", "result", "refused", "bye", "secure", "waiting")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    SECURE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    beat: Beat
    result: Result
    refused: Refused
    bye: Bye
    secure: Secure
    waiting: Waiting
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping[str, object]]] = ..., beat: _Optional[_Union[Beat, _Mapping[str, object]]] = ..., result: _Optional[_Union[Result, _Mapping[str, object]]] = ..., refused: _Optional[_Union[Refused, _Mapping[str, object]]] = ..., bye: _Optional[_Union[Bye, _Mapping[str, object]]] = ..., secure: _Optional[_Union[Secure, _Mapping[str, object]]] = ..., waiting: _Optional[_Union[Waiting, _Mapping[str, object]]] = ...) -> None: ...

class ServerFrame(_message.Message):
    __slots__ = ("welcome", "turned", "plan", "committed", "over", "beat", "secure")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    TURNED_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    SECURE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    turned: Turned
    plan: Plan
    committed: Committed
    over: Over
    beat: Beat
    secure: Secure
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping[str, object]]] = ..., turned: _Optional[_Union[Turned, _Mapping[str, object]]] = ..., plan: _Optional[_Union[Plan, _Mapping[str, object]]] = ..., committed: _Optional[_Union[Committed, _Mapping[str, object]]] = ..., over: _Optional[_Union[Over, _Mapping[str, object]]] = ..., beat: _Optional[_Union[Beat, _Mapping[str, object]]] = ..., secure: _Optional[_Union[Secure, _Mapping[str, object]]] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Hello(_message.Message):
    __slots__ = ("major", "minor", "run", "epoch", "node", "token", "layout", "strategy", "instance", "sums", "waiting")
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    major: int
    minor: int
    run: str
    epoch: int
    node: int
    token: str
    layout: str
    strategy: str
    instance: bytes
    sums: _containers.RepeatedCompositeFieldContainer[Sum]
    waiting: Waiting
    def __init__(self, major: _Optional[int] = ..., minor: _Optional[int] = ..., run: _Optional[str] = ..., epoch: _Optional[int] = ..., node: _Optional[int] = ..., token: _Optional[str] = ..., layout: _Optional[str] = ..., strategy: _Optional[str] = ..., instance: _Optional[bytes] = ..., sums: _Optional[_Iterable[_Union[Sum, _Mapping[str, object]]]] = ..., waiting: _Optional[_Union[Waiting, _Mapping[str, object]]] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("state", "starts_in")
    STATE_FIELD_NUMBER: _ClassVar[int]
    STARTS_IN_FIELD_NUMBER: _ClassVar[int]
    state: str
    starts_in: float
    def __init__(self, state: _Optional[str] = ..., starts_in: _Optional[float] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("minor", "epoch", "heartbeat", "orphan_after", "session")
    MINOR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_AFTER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    minor: int
    epoch: int
    heartbeat: float
    orphan_after: float
    session: str
    def __init__(self, minor: _Optional[int] = ..., epoch: _Optional[int] = ..., heartbeat: _Optional[float] = ..., orphan_after: _Optional[float] = ..., session: _Optional[str] = ...) -> None: ...

class Turned(_message.Message):
    __slots__ = ("code", "line")
    CODE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    code: str
    line: str
    def __init__(self, code: _Optional[str] = ..., line: _Optional[str] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("id", "run", "seed", "round", "kind", "split", "hyper", "memory", "deadline", "vectors", "terms", "attempt")
    ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    HYPER_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    id: str
    run: str
    seed: int
    round: int
    kind: str
    split: str
    hyper: str
    memory: str
    deadline: float
    vectors: _containers.RepeatedCompositeFieldContainer[Blob]
    terms: bytes
    attempt: str
    def __init__(self, id: _Optional[str] = ..., run: _Optional[str] = ..., seed: _Optional[int] = ..., round: _Optional[int] = ..., kind: _Optional[str] = ..., split: _Optional[str] = ..., hyper: _Optional[str] = ..., memory: _Optional[str] = ..., deadline: _Optional[float] = ..., vectors: _Optional[_Iterable[_Union[Blob, _Mapping[str, object]]]] = ..., terms: _Optional[bytes] = ..., attempt: _Optional[str] = ...) -> None: ...

class Secure(_message.Message):
    __slots__ = ("attempt", "step", "messages")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    attempt: str
    step: str
    messages: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, attempt: _Optional[str] = ..., step: _Optional[str] = ..., messages: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Blob(_message.Message):
    __slots__ = ("name", "sha256", "size", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: bytes
    size: int
    data: bytes
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[bytes] = ..., size: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("plan", "round", "examples", "memory", "upload", "sums")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    plan: str
    round: int
    examples: int
    memory: str
    upload: Blob
    sums: _containers.RepeatedCompositeFieldContainer[Sum]
    def __init__(self, plan: _Optional[str] = ..., round: _Optional[int] = ..., examples: _Optional[int] = ..., memory: _Optional[str] = ..., upload: _Optional[_Union[Blob, _Mapping[str, object]]] = ..., sums: _Optional[_Iterable[_Union[Sum, _Mapping[str, object]]]] = ...) -> None: ...

class Sum(_message.Message):
    __slots__ = ("name", "shape", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("plan", "code", "line")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    plan: str
    code: str
    line: str
    def __init__(self, plan: _Optional[str] = ..., code: _Optional[str] = ..., line: _Optional[str] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Over(_message.Message):
    __slots__ = ("line",)
    LINE_FIELD_NUMBER: _ClassVar[int]
    line: str
    def __init__(self, line: _Optional[str] = ...) -> None: ...

class Bye(_message.Message):
    __slots__ = ("line",)
    LINE_FIELD_NUMBER: _ClassVar[int]
    line: str
    def __init__(self, line: _Optional[str] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("sha256", "offset")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    offset: int
    def __init__(self, sha256: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class Upload(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: str
    def __init__(self, plan: _Optional[str] = ...) -> None: ...

class Taken(_message.Message):
    __slots__ = ("size", "sha256")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    size: int
    sha256: bytes
    def __init__(self, size: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...
