# Writes the report from what the merge left: years.txt, and its results in the environment.
set -eu

{
    echo "Weather in Seattle"
    echo
    printf '%-6s%5s%10s  %-16s%-16s%-15s%s\n' \
        year days "rain mm" "warmest °C" "coldest °C" "windiest m/s" "mostly"
    while read -r year days mm max max_date min min_date wind wind_date weather weather_days; do
        printf '%-6s%5s%10.1f  %-15s%-15s%-15s%s\n' "$year" "$days" "$mm" \
            "$max (${max_date#*/})" "$min (${min_date#*/})" "$wind (${wind_date#*/})" "$weather ($weather_days)"
    done < years.txt
    echo
    printf 'together %s days and %.1f mm; the wettest year was %s\n' \
        "$DAYS" "$PRECIPITATION_MM" "$WETTEST_YEAR"
} > report.txt

cat report.txt

{
    echo "days=$DAYS"
    echo "precipitation_mm=$(LC_ALL=C printf '%.1f' "$PRECIPITATION_MM")"
    echo "wettest_year=$WETTEST_YEAR"
    while read -r year days mm rest; do
        echo "days_$year=$days"
        echo "precipitation_mm_$year=$(LC_ALL=C printf '%.1f' "$mm")"
    done < years.txt
} >> "$MYCORA_RESULT"
