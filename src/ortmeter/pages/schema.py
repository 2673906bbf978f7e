"""JSON Schema of a record, and the check of a file against it."""

from collections.abc import Mapping
from typing import Any

from ortmeter.timing.claims import COMPARED, JUDGED

__all__ = ["SCHEMA", "VERSION", "why_invalid"]

#: Incremented when older readers would misread a file.
VERSION = 2

#: Characters of a message that are shown.
_LONG = 200

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 1}
_POSITIVE = {"type": "number", "minimum": 0}
_WORK = {"type": ["number", "null"], "minimum": 0}
_SCALAR = {"type": ["null", "boolean", "integer", "number", "string"]}
_VALUE = {"$ref": "#/$defs/value"}


def _object(optional: Mapping[str, Any] | None = None, **properties: Any) -> dict[str, Any]:
    """Schema of an object that has just these properties."""
    return {
        "type": "object",
        "properties": {**properties, **(optional or {})},
        "required": list(properties),
        "additionalProperties": False,
    }


def _list_of(items: Mapping[str, Any], **limits: int) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


def _tagged(tag: str, **properties: Any) -> dict[str, Any]:
    return _object(**{"$": {"const": tag}}, **properties)


_MEASUREMENT = _tagged(
    "measurement",
    unit={"const": "s"},
    repeat=_COUNT,
    name=_TEXT,
    seconds=_list_of(_list_of(_POSITIVE, minItems=1), minItems=1),
    number=_COUNT,
    warmup=_list_of(_POSITIVE),
    flop=_WORK,
    bytes_moved=_WORK,
)
_NUMBERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_NUMBERS += ["float16", "float32", "float64"]
_COLUMN = _object(
    name=_TEXT,
    dtype={"enum": [None, "bool", *_NUMBERS]},
    values=_list_of(_VALUE),
)
_TEXTS = {"type": "object", "additionalProperties": _TEXT}
_ENVIRONMENT = _object(
    system=_TEXT,
    cpu=_TEXT,
    cores=_COUNT,
    threads={"type": "object", "additionalProperties": {"type": "integer"}},
    python=_TEXT,
    packages=_TEXTS,
    providers=_TEXTS,
    gpus=_list_of(_object(name=_TEXT, memory_mib={"type": ["integer", "null"]}, driver=_TEXT)),
    precision=_TEXTS,
    commit={"type": ["string", "null"]},
)
_ITEM = {"type": "array", "prefixItems": [_SCALAR, _VALUE], "minItems": 2, "maxItems": 2}

_COMPARISON = _tagged(
    "comparison",
    stopped={"enum": ["precision", "budget", "repeat"]},
    measurements=_list_of(_MEASUREMENT, minItems=1),
)
_GROUP = {
    "type": "array",
    "prefixItems": [_SCALAR, _COMPARISON],
    "minItems": 2,
    "maxItems": 2,
}
_COMPARISONS = _tagged("comparisons", axis=_TEXT, groups=_list_of(_GROUP))
_VALUES = {"type": "object", "additionalProperties": _SCALAR}
_NUMBER = {"type": ["number", "null"], "exclusiveMinimum": 0}
_SHARE = {"type": "number", "minimum": 0, "maximum": 1}
_CLAIM = _object(
    subject=_TEXT,
    verdict={"enum": sorted({*COMPARED, *JUDGED, "fact"})},
    baseline=_TEXT,
    where=_VALUES,
    ratio=_NUMBER,
    low=_NUMBER,
    high=_NUMBER,
    confidence=_SHARE,
    min_effect=_POSITIVE,
    how=_TEXT,
    values=_VALUES,
    topic=_TEXT,
)
_ANSWER = _object(text=_TEXT, claims=_list_of(_CLAIM), values=_VALUES)

_COMMON = {
    "page": {"type": "string", "pattern": r"^plot_\w+$"},
    "configuration": {**_TEXTS, "required": ["provider"]},
    "date": {"type": "string", "format": "date-time"},
    "environment": _ENVIRONMENT,
    "data": _tagged("mapping", items=_list_of(_ITEM)),
}
_CONCLUDED = {"answer": {"anyOf": [{"type": "null"}, _ANSWER]}, "claims": _list_of(_CLAIM)}
_VALUE_KINDS = [
    _SCALAR,
    _list_of(_VALUE),
    _tagged("float", text={"enum": ["nan", "inf", "-inf"]}),
    _tagged("mapping", items=_list_of(_ITEM)),
    _tagged("tuple", items=_list_of(_VALUE)),
    _tagged("table", index=_list_of(_TEXT), columns=_list_of(_COLUMN)),
    _MEASUREMENT,
    _COMPARISON,
    _COMPARISONS,
]


def _schema(version: int, **concluded: Any) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What a page of ortmeter measured on a machine",
        "$defs": {"value": {"anyOf": _VALUE_KINDS}},
        **_object(
            optional={"run": _COUNT}, schema_version={"const": version}, **_COMMON, **concluded
        ),
    }


#: Schema of the files (draft 2020-12).
SCHEMA: dict[str, Any] = _schema(VERSION, **_CONCLUDED)
# Files of the first version hold sentences, without what they say.
_SCHEMAS = {1: _schema(1, sentences=_list_of(_TEXT)), VERSION: SCHEMA}


def why_invalid(content: Mapping[str, Any]) -> str | None:
    """Say where *content* differs from the schema of its version, None when it does not."""
    import jsonschema

    version = content.get("schema_version")
    if version not in _SCHEMAS:
        return f"schema_version is {version!r}. Accepted: {', '.join(map(str, _SCHEMAS))}"
    validator = jsonschema.Draft202012Validator(_SCHEMAS[version])
    error = jsonschema.exceptions.best_match(validator.iter_errors(content))
    if error is None:
        return None
    where = "".join(f"[{part!r}]" for part in error.absolute_path)
    message = error.message if len(error.message) < _LONG else f"{error.message[:_LONG]}..."
    return f"{where or 'the file'}: {message}"
