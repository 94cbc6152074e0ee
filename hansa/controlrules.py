"""The rules that both ends of a question to the server's control end keep. HTTP, by the gate.

POST /v1/control/VERB      a JSON object
answer                     a line of JSON each: {"line": "to print"}, {} when quiet,
                           last {"result": {...}} or {"error": ["line", ...], "code": 1 or 2};
                           or a file from a byte on
"""

PATH = "/v1/control/"
JSON_LINES, BYTES = "application/x-ndjson", "application/octet-stream"  # the types of an answer
BEAT = 15.0  # seconds after which a quiet answer shows that it is alive
QUIET = 60.0  # seconds of silence after which an end is given up
