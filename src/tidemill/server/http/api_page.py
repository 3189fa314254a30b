"""The page at `/docs`: the admin API, rendered from its own OpenAPI description.

Owns how the description looks as HTML. It is plain text and tables, rendered here: the usual viewers load
their scripts from other hosts, which a page of the broker never does. Programs read `/openapi.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Json = Mapping[str, Any]

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Tidemill: HTTP API</title>
<link rel="icon" href="/dashboard/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/dashboard/style/base.css">
<link rel="stylesheet" href="/dashboard/style/api.css">
<script src="/dashboard/theme.js"></script>
</head>
<body class="api">
"""
_LIMITS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "minLength": "characters at least",
    "maxLength": "characters at most",
    "maxItems": "items at most",
}


def api_page(spec: Json) -> str:
    """The whole page for an OpenAPI description."""
    by_tag: dict[str, list[str]] = {}
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            tag = operation.get("tags", ["other"])[0]
            by_tag.setdefault(tag, []).append(_operation(spec, method, path, operation))
    links = " · ".join(f'<a href="#{escape(tag)}">{escape(tag)}</a>' for tag in by_tag)
    sections = "\n".join(
        f'<section id="{escape(tag)}"><h2>{escape(tag.capitalize())}</h2>\n{"".join(parts)}</section>'
        for tag, parts in by_tag.items()
    )
    info = spec["info"]
    intro = (
        f"<p>{escape(info.get('summary', ''))} Everything the dashboard does goes through these requests. "
        "Times are Unix milliseconds. With <code>--auth</code> send "
        "<code>Authorization: Bearer TOKEN</code>.</p>"
        f'<p>{links} · <a href="/openapi.json">openapi.json</a> · <a href="/">dashboard</a></p>'
    )
    return f"{_HEAD}<h1>HTTP API</h1>\n{intro}\n{sections}\n{_errors(spec)}</body>\n</html>\n"


def _operation(spec: Json, method: str, path: str, operation: Json) -> str:
    text = operation.get("description") or operation.get("summary", "")
    given = [
        (p["name"], _kind(spec, p.get("schema", {})), p.get("required", False), p.get("description", ""))
        for p in operation.get("parameters", ())
    ]
    body = _schema_of(spec, operation.get("requestBody", {}))
    answer = _schema_of(spec, operation.get("responses", {}).get("200", {}))
    return (
        f'<article id="{escape(operation.get("operationId", path))}">'
        f"<h3><span>{escape(method.upper())}</span> <code>{escape(path)}</code></h3><p>{escape(text)}</p>"
        f"{_table('Parameters', given)}{_table('Body', list(_fields(spec, body)))}"
        f"{_table('Answer', list(_fields(spec, answer)), is_answer=True)}</article>\n"
    )


def _schema_of(spec: Json, holder: Json) -> Json:
    content = holder.get("content", {}).get("application/json", {})
    return _resolved(spec, content.get("schema", {}))


def _resolved(spec: Json, schema: Json) -> Json:
    if reference := schema.get("$ref"):
        found: Json = spec["components"]["schemas"][reference.rsplit("/", 1)[-1]]
        return found
    return schema


def _fields(spec: Json, schema: Json) -> Iterator[tuple[str, str, bool, str]]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        yield name, _kind(spec, field), name in required, field.get("description", "")


def _kind(spec: Json, schema: Json) -> str:
    """A type in a few words: `integer, at least 1`, `list of Draft (topic, body …)`."""
    if "$ref" in schema:
        named = _resolved(spec, schema)
        if "enum" in named:
            return " | ".join(map(str, named["enum"]))
        return f"{{ {', '.join(named.get('properties', {}))} }}"
    if several := schema.get("anyOf"):
        kinds = [_kind(spec, one) for one in several if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(spec, schema.get('items', {}))}"
    kind = str(schema.get("type", "any"))
    limits = [f"{words} {schema[name]:,}" for name, words in _LIMITS.items() if name in schema]
    return ", ".join([kind, *limits])


def _table(title: str, rows: list[tuple[str, str, bool, str]], *, is_answer: bool = False) -> str:
    if not rows:
        return ""
    lines = "".join(
        f"<tr><td><code>{escape(name)}</code>{_must(required, is_answer)}</td>"
        f"<td>{escape(kind)}</td><td>{escape(text)}</td></tr>"
        for name, kind, required, text in rows
    )
    return (
        f"<details{'' if is_answer else ' open'}><summary>{title}</summary><table>{lines}</table></details>"
    )


def _must(required: bool, is_answer: bool) -> str:
    return ' <span class="must">required</span>' if required and not is_answer else ""


def _errors(spec: Json) -> str:
    """The errors that every request may return."""
    seen: dict[str, str] = {}
    for methods in spec["paths"].values():
        for operation in methods.values():
            for status, answer in operation.get("responses", {}).items():
                if status != "200":
                    seen[status] = answer.get("description", "")
    rows = [(status, seen[status], False, "") for status in sorted(seen)]
    return f'<section id="errors"><h2>Errors</h2>{_table("Any of them", rows)}</section>\n'
