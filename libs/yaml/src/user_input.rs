//! Lenient parsing of text that people write.

use std::time::Duration;

/// Minimum similarity of a suggested word to the one that was written.
const LIKENESS_MIN: f64 = 0.75;

/// `; did you mean …?` when one of `known` is alike, else nothing.
#[must_use]
pub fn did_you_mean(written: &str, known: &[&str]) -> String {
    let alike = known
        .iter()
        .map(|known| (strsim::jaro_winkler(&written.to_lowercase(), &known.to_lowercase()), known))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    alike.map(|(_, known)| format!("; did you mean `{known}`?")).unwrap_or_default()
}

/// Reads a length of time: `90s`, `15m`, `2h` or `7d`.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1))?;
    let secs = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return None,
    };
    Some(Duration::from_secs(u64::from(number.parse::<u32>().ok()?) * secs))
}

/// Reads a length of time that may be short: `500ms`, or as [`duration`] does.
#[must_use]
pub fn short_duration(text: &str) -> Option<Duration> {
    match text.strip_suffix("ms") {
        Some(number) => Some(Duration::from_millis(u64::from(number.parse::<u32>().ok()?))),
        None => duration(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_that_is_most_alike_is_suggested() {
        let known = ["script", "script_type", "depends"];
        assert_eq!(did_you_mean("dependz", &known), "; did you mean `depends`?");
        assert_eq!(did_you_mean("SCRIPT", &known), "; did you mean `script`?");
        assert_eq!(did_you_mean("banana", &known), "");
    }

    #[test]
    fn lengths_have_a_unit() {
        let secs = |text: &str| duration(text).map(|length| length.as_secs());
        assert_eq!(["90s", "15m", "2h", "7d"].map(secs), [Some(90), Some(900), Some(7_200), Some(604_800)]);
        assert_eq!(short_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!((short_duration("2m"), duration("5ms")), (Some(Duration::from_secs(120)), None));
        for wrong in ["", "s", "90", "-1s", "1.5h", "4294967296s", "1é", "1 h"] {
            assert_eq!((duration(wrong), short_duration(wrong)), (None, None), "{wrong}");
        }
    }
}
