"""Splits the weather into one file for each year."""

import csv

import mycora

by_year = {}
with open("seattle-weather.csv", newline="") as source:
    reader = csv.DictReader(source)
    for row in reader:
        by_year.setdefault(row["date"][:4], []).append(row)

for year, rows in by_year.items():
    with open(f"weather-{year}.csv", "w", newline="") as target:
        writer = csv.DictWriter(target, reader.fieldnames)
        writer.writeheader()
        writer.writerows(rows)
    print(f"{year}: {len(rows)} days")

mycora.result(years=len(by_year))
