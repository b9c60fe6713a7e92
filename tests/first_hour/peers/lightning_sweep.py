"""Two learning rates for lightning_digits.py, and a table of them."""

import csv
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("lightning_digits.py")
rows = []
for lr in ("0.1", "0.01"):
    place = Path("sweep", f"lr={lr}")
    words = ["--epochs", "1", "--lr", lr, "--work-dir", place]
    subprocess.run([sys.executable, SCRIPT, *words], check=True)
    with next(place.glob("*/*/metrics.csv")).open() as file:
        scores = [float(row["accuracy"] or 0) for row in csv.DictReader(file)]
    rows.append((max(scores), lr))
for accuracy, lr in sorted(rows, reverse=True):
    print(f"lr {lr} accuracy {accuracy:.4f}")
