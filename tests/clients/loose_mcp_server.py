"""A server written by hand, without the SDK: malformed tools beside good ones, own errors, and lists without an end."""

import json
import sys
from typing import Any

GOOD = {"name": "good", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object"}}
TOOLS = [{"name": "without_schema"}, GOOD, {"name": "busy", "inputSchema": {"type": "object"}}, 3]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        version = params["protocolVersion"]
        info = {"name": "loose", "version": "1"}
        return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
    if method == "tools/list":
        more = {"nextCursor": "again"} if "endless" in sys.argv else {}
        return {"result": {"tools": [GOOD] if "endless" in sys.argv else TOOLS, **more}}
    if method == "tools/call" and params["name"] == "good":
        return {"result": {"content": [{"type": "text", "text": "fine"}], "structuredContent": {"a": 1}}}
    if method == "tools/call":
        return {"error": {"code": -32000, "message": "Connection closed"}}  # the words of the SDK, from a server
    return {"error": {"code": -32601, "message": "no such method"}}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        reply = {"jsonrpc": "2.0", "id": message["id"], **answer(message["method"], message.get("params", {}))}
        sys.stdout.write(f"{json.dumps(reply)}\n")
        sys.stdout.flush()
