"""Sums up the weather of one year, named by YEAR."""

import csv
import os
from collections import Counter

import mycora

year = os.environ["YEAR"]
with open(f"weather-{year}.csv", newline="") as source:
    days = list(csv.DictReader(source))

warmest = max(days, key=lambda day: float(day["temp_max"]))
coldest = min(days, key=lambda day: float(day["temp_min"]))
windiest = max(days, key=lambda day: float(day["wind"]))
most_frequent, how_often = Counter(day["weather"] for day in days).most_common(1)[0]

mycora.result(
    year=year,
    days=len(days),
    # A text, so that the last digit stays where it is 0.
    precipitation_mm=format(sum(float(day["precipitation"]) for day in days), ".1f"),
    temp_max_c=warmest["temp_max"],
    temp_max_date=warmest["date"],
    temp_min_c=coldest["temp_min"],
    temp_min_date=coldest["date"],
    wind_max_ms=windiest["wind"],
    wind_max_date=windiest["date"],
    weather=most_frequent,
    weather_days=how_often,
)
print(f"{year}: {len(days)} days, mostly {most_frequent}")
