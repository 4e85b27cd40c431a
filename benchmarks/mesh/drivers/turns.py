"""What all drivers do: make an actor in another process, then calls when they are asked for.

`run(call)` prints "ready", and for each line with a number that many times, in nanoseconds
(CLOCK_MONOTONIC of the calling process), as JSON. Imports the standard library only.
"""

import json
import sys
import time


def run(call, version):
    for number in range(200):  # warm
        assert call(number) == number + 1
    print("ready", version, flush=True)
    for line in sys.stdin:
        times = []
        for number in range(int(line)):
            begun = time.perf_counter_ns()
            answer = call(number)
            times.append(time.perf_counter_ns() - begun)
            assert answer == number + 1
        print(json.dumps(times), flush=True)
