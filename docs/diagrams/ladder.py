"""The ladder as bars, from the table of docs/results/ladder_gpu.md: python3 docs/diagrams/ladder.py >x.dot"""
import math
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "results/ladder_gpu.md"
COLOURS = {64: "#afd7ff", 128: "#afd7af"}
LEAST, DECADE, LONGEST = 0.5, 120, 360  # TFLOP/s of a bar without length; points of a factor of 10, of the longest bar

text = PAGE.read_text()
best = {}  # {step or peer: {D: TFLOP/s}}, of the fastest constants
for line in text.splitlines():
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    if line.startswith("|") and len(cells) >= 5 and re.match(r"step\d\d_\w+$|FlashAttention-2", cells[0]):
        name, rate = cells[0].split(" (")[0], max(float(x) for x in re.findall(r"[\d.]+", cells[4]))
        rates = best.setdefault(name, {})
        rates[int(cells[2])] = max(rate, rates.get(int(cells[2]), 0))

print("digraph ladder {\n  bgcolor=white")
print('  node [shape=plain fontname="Helvetica,Arial,sans-serif"]')
print('  bars [label=<<table border="0" cellborder="0" cellspacing="2">')
print(f'  <tr><td align="left" colspan="2">TFLOP/s, {text.splitlines()[2].split(",")[0]}, S = 4096, f16, no mask; '
      "logarithmic</td></tr>")
for name, rates in best.items():
    for i, (head_dim, rate) in enumerate(rates.items()):
        width = round(DECADE * math.log10(rate / LEAST))
        print(f'  <tr><td align="left">{name if i == 0 else ""}</td><td align="left"><table border="0" cellborder="0" '
              f'cellspacing="0"><tr><td bgcolor="{COLOURS[head_dim]}" fixedsize="true" width="{width}" height="20"></td>'
              f'<td fixedsize="true" width="128" height="20">{rate:.3g} (D = {head_dim})</td>'
              f'<td fixedsize="true" width="{LONGEST - width}" height="20"></td></tr></table></td></tr>')
print("  </table>>]\n}")
