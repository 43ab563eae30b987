"""Two files of `make bench`, side by side: what became faster, what slower.

    python tools/bench_diff.py bench/OLD.json bench/NEW.json

The ratios to the peer are compared, not the speeds: the peer ran beside us, so a machine that was
busier at one time than at the other changes both.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

Figures = dict[tuple[str, str], tuple[float, float]]


def figures(path: Path) -> Figures:
    """{(model, test): (tokens a second, ratio to the peer)}. SystemExit for other files."""
    try:
        made: dict[str, Any] = json.loads(path.read_text())["figures"]
        return {
            # Older files have the number of tokens beside the test, not in its name.
            (row["model"], f"{test}{row.get('n', {}).get(test, '')}"): (
                ours,
                ours / row["peer"][test],
            )
            for row in made["rows"]
            for test, ours in row["ours"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise SystemExit(f"{path}: not a file of `make bench` ({error})") from None


def lines(old: Figures, new: Figures) -> list[str]:
    """The table, a test a line; tests that only one file has are named at the end."""
    title = f"{'model':26} {'test':>7} {'old t/s':>9} {'new t/s':>9} {'old ratio':>10} "
    found = [title + f"{'new ratio':>10} {'change':>8}"]
    for key in [key for key in old if key in new]:
        (before, was), (after, now) = old[key], new[key]
        change = f"{100 * (now / was - 1):+.1f} %"
        row = f"{key[0][:26]:26} {key[1]:>7} {before:9.1f} {after:9.1f}"
        found.append(f"{row} {was:10.2f} {now:10.2f} {change:>8}")
    found += [f"only in one of them: {' '.join(key)}" for key in sorted(old.keys() ^ new.keys())]
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare two files of `make bench`.")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    options = parser.parse_args(arguments)
    old, new = figures(options.old), figures(options.new)
    if options.json:
        rows = [
            {"model": m, "test": t, "old": old[m, t], "new": new[m, t]}
            for m, t in old
            if (m, t) in new
        ]
        print(json.dumps(rows))
    else:
        print("\n".join(lines(old, new)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
