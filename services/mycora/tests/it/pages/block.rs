//! The blocks of a page, and the comparison of a block with what was printed.

/// Placeholder for lines that are left out.
const ELLIPSIS: &str = "…";
/// Placeholder for text that differs from run to run.
const SOME: &str = "#";
const UNITS: [&str; 6] = ["ms", "s", "min", "h", "d", "MiB"];

/// Text between two fences, and where it stands on the page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Text after the first fence, which names the language.
    pub(super) language: String,
    /// The lines between them, each with its end.
    pub(super) text: String,
    /// The number of the first fence's line, from 1.
    pub(super) line: usize,
}

/// All blocks of a page, in their order.
pub(super) fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut is_inside = false;
    for (line, text) in (1..).zip(page.lines()) {
        match text.strip_prefix("```") {
            Some(_) if is_inside => is_inside = false,
            Some(language) => {
                found.push(Block { language: language.to_owned(), text: String::new(), line });
                is_inside = true;
            }
            None => {
                if let Some(block) = found.last_mut().filter(|_| is_inside) {
                    block.text.push_str(text);
                    block.text.push('\n');
                }
            }
        }
    }
    found
}

/// Returns true when this was printed, but for times, widths of columns, and lines that `…` stands for.
pub(super) fn is_what_was_printed(shown: &str, printed: &str) -> bool {
    let shapes = |text: &str| text.trim().lines().map(shape).collect::<Vec<_>>();
    matches(&shapes(shown), &shapes(printed))
}

fn matches(shown: &[String], printed: &[String]) -> bool {
    match shown {
        [] => printed.is_empty(),
        [line, rest @ ..] if line == ELLIPSIS => (0..=printed.len()).any(|n| matches(rest, &printed[n..])),
        [line, rest @ ..] => printed.first() == Some(line) && matches(rest, &printed[1..]),
    }
}

/// A line without what differs from run to run.
fn shape(line: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in line.split_whitespace() {
        let bare = part.trim_matches(['(', ')', ',', ';']);
        let is_time = bare.len() >= 8 && bare.chars().all(|c| c.is_ascii_digit() || matches!(c, '-' | ':'));
        if UNITS.contains(&bare) && parts.last().is_some_and(|last| is_number(last)) {
            parts.pop();
            // Longer ones have two numbers. Those that are not known, of a job whose start was told with its end, have none.
            while matches!(parts.last(), Some(&(SOME | "after" | "·"))) {
                parts.pop();
            }
            parts.push(SOME);
        } else if is_time || part.contains("/mycora-demo-") {
            parts.push(SOME);
        } else {
            parts.push(part);
        }
    }
    parts.retain(|part| *part != SOME);
    parts.join(" ")
}

fn is_number(part: &str) -> bool {
    part.trim_start_matches('(').parse::<f64>().is_ok()
}

#[test]
fn blocks_are_found_with_their_lines() {
    let found = blocks("a\n```sh\none\n\ntwo\n```\nb\n```\n```\n");
    let block =
        |language: &str, text: &str, line| Block { language: language.into(), text: text.into(), line };
    assert_eq!(found, [block("sh", "one\n\ntwo\n", 2), block("", "", 8)]);
}

#[test]
fn only_times_and_what_is_left_out_may_differ() {
    let shown = "job a   completed after 36 ms\n…\ncreated  2026-11-23 05:25:30 UTC\n";
    for printed in [
        "job a  completed after 1 min 05 s\nmore\nand more\ncreated  2027-01-01 00:00:00 UTC\n",
        "\njob a  completed\ncreated  2027-01-01 00:00:00 UTC",
    ] {
        assert!(is_what_was_printed(shown, printed), "{printed}");
    }
    for printed in [
        "job b  completed after 36 ms\ncreated  2026-11-23 05:25:30 UTC",
        "job a  completed after 36 ms\ncreated  2026-11-23 05:25:30 UTC\nmore",
        "job a  completed after 36 ms\ncreated  2026-11-23",
    ] {
        assert!(!is_what_was_printed(shown, printed), "{printed}");
    }
}
