"""What both Python drivers share: one line of JSON for each operation."""

import json
import traceback


def want(holds, says):
    if not holds:
        raise AssertionError(says)


async def run(operations):
    for name, operation in operations:
        try:
            line = {"op": name, "ok": True, "detail": str(await operation())}
        except Exception as error:  # noqa: BLE001  (whatever the client raises is the finding)
            where = traceback.extract_tb(error.__traceback__)[-1]
            line = {"op": name, "ok": False, "detail": f"{type(error).__name__}: {error} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})"}
        print(json.dumps(line), flush=True)
