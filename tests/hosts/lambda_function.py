"""One Lambda process: a line of JSON in is an event, a line of JSON out is what Mangum makes of it."""

import importlib
import json
import sys

from mangum import Mangum

if __name__ == "__main__":
    handler = Mangum(importlib.import_module(f"tests.hosts.{sys.argv[1]}_app").app, lifespan="on")
    for line in sys.stdin:
        sys.stdout.write(f"{json.dumps(handler(json.loads(line), None))}\n")  # type: ignore[arg-type]
        sys.stdout.flush()
