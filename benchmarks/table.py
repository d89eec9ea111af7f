"""Writer of the table of results in README.md, from the JSON files in `results`."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent
BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def lines() -> list[str]:
    out = [
        "| benchmark | what | Phalanx | against | ratio (interquartile range) | target |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted((FOLDER / "results").glob("*.json")):
        result = json.loads(path.read_text())
        for row in result.get("rows", ()):
            low, high = row["middle_half"]
            ratio = f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"
            if "above_ms" in row:
                ratio = f"{row['above_ms']:.1f} ms above"
            target = f"at most {row['at_most']}"
            out.append(
                f"| `{path.stem}` | {row['what']} | {row['ours']}: {row['ours_time']:.3g} {row['unit']} "
                f"| {row['theirs']}: {row['theirs_time']:.3g} {row['unit']} | {ratio} "
                f"| {target}: {'met' if row['met'] else 'missed'} |"
            )
    return out


def tables() -> list[str]:
    """Return the results that have a table of their own."""
    out = []
    for path in sorted((FOLDER / "results").glob("*.json")):
        if found := json.loads(path.read_text()).get("table"):
            out += ["", f"`{path.stem}`, line by line:", ""]
            out += [f"| {' | '.join(found['columns'])} |", "|---" * len(found["columns"]) + "|"]
            out += [f"| {' | '.join(line)} |" for line in found["lines"]]
    return out


def main() -> None:
    readme = FOLDER / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(before + "\n".join([BEGIN, "", *lines(), *tables(), "", END]) + after)


if __name__ == "__main__":
    main()
