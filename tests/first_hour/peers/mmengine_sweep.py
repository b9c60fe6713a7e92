"""Two learning rates for mmengine_digits.py, and a table of them."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("mmengine_digits.py")
rows = []
for lr in ("0.1", "0.01"):
    place = Path("sweep", f"lr={lr}")
    words = ["--epochs", "1", "--lr", lr, "--work-dir", place]
    subprocess.run([sys.executable, SCRIPT, *words], check=True)
    lines = next(place.glob("*/vis_data/scalars.json")).read_text().splitlines()
    scores = [json.loads(line).get("accuracy", 0) for line in lines]
    rows.append((max(scores), lr))
for accuracy, lr in sorted(rows, reverse=True):
    print(f"lr {lr} accuracy {accuracy:.4f}")
