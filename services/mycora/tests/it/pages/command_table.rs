//! The README's table of commands: each of its lines is understood, and no command is missing from it.

use mycora_cli::cli;

/// Placeholders for values, each with a value that it may have.
const VALUES: [(&str, &str); 24] = [
    ("ID", "7"),
    ("JOB", "merge"),
    ("FILE", "flow.yaml"),
    ("DIR", "there"),
    ("NAME", "approved"),
    ("PREFIX", "nightly-"),
    ("K=V", "YEAR=2015"),
    ("ACTOR", "2"),
    ("KEY@ADDRESS", "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a@grpc://10.0.0.7:7703"),
    ("TEXT", "The report is ready"),
    ("MESSAGE", "message:1:7"),
    ("ADDRESS", "grpc://127.0.0.1:7706"),
    ("JOB_KEY", "f05871c3b071fee2287811d646fb2eed-034af5a2f4e7c7349b62218f2014992f-2-1"),
    ("ROOT", "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"),
    ("URL", "redis://127.0.0.1:6379"),
    ("IP", "127.0.0.1"),
    ("IDENTITY", "actor/2"),
    ("SAGA", "order-fulfilment"),
    ("CORRELATION", "order-7"),
    ("EVENT", "PaymentCaptured"),
    ("JSON", "{}"),
    ("COMMAND", "018f4d2e-7a1b-7c3d-8e4f-0123456789ab"),
    ("LETTER", "letter"),
    ("LANE", "s:acme:order-fulfilment:0"),
];

/// The command lines of the table, each whole: what follows another one's group is written without it there.
fn command_lines() -> Vec<String> {
    let readme = testkit::pages::read("README.md");
    let rows = readme.lines().filter(|line| line.starts_with("| `mycora "));
    let groups: Vec<String> = cli::command()
        .get_subcommands()
        .filter(|group| group.has_subcommands())
        .map(|group| group.get_name().to_owned())
        .collect();
    let mut lines = Vec::new();
    for row in rows {
        let cell = row.replace("\\|", "¦").split('|').nth(1).expect("a cell").replace('¦', "|");
        let mut group = String::new();
        for line in cell.split('`').skip(1).step_by(2) {
            let whole = match line.strip_prefix("mycora ") {
                Some(line) => {
                    let first = line.split(' ').next().unwrap_or_default();
                    group = groups.iter().find(|group| *group == first).cloned().unwrap_or_default();
                    line.to_owned()
                }
                None => format!("{group} {line}"),
            };
            lines.push(whole);
        }
    }
    lines
}

/// Returns what can be typed for a line: without the parts in brackets and with them, and each of what `|` separates.
fn typed(line: &str) -> Vec<Vec<String>> {
    let without: String =
        line.split('[').map(|part| part.split_once(']').map_or(part, |(_, rest)| rest)).collect();
    let with = line.replace(['[', ']'], "");
    let mut all = Vec::new();
    for line in [without, with] {
        let mut found: Vec<Vec<String>> = vec![Vec::new()];
        for part in line.split_whitespace() {
            let values: Vec<String> = part.split('|').map(value).collect();
            found = found
                .iter()
                .flat_map(|begin| values.iter().map(|value| [begin, std::slice::from_ref(value)].concat()))
                .collect();
        }
        all.extend(found);
    }
    all
}

/// Returns the text typed for a word.
fn value(part: &str) -> String {
    let part = part.trim_end_matches("...");
    let known = VALUES.iter().find(|(name, _)| *name == part);
    let is_placeholder = part.chars().any(|c| c.is_ascii_uppercase());
    assert!(known.is_some() || !is_placeholder, "the test has no value for {part}");
    known.map_or(part, |(_, value)| value).to_owned()
}

#[test]
fn every_command_line_of_the_readme_is_understood() {
    let lines = command_lines();
    let mut refused = Vec::new();
    for line in &lines {
        for arguments in typed(line) {
            let whole = std::iter::once("mycora".to_owned()).chain(arguments);
            if let Err(error) = cli::command().try_get_matches_from(whole) {
                refused.push(format!("{line}: {error}"));
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn every_command_stands_in_the_readme() {
    let lines = command_lines();
    let is_in_the_table =
        |whole: &String| lines.iter().any(|line| line == whole || line.starts_with(&format!("{whole} ")));
    let command = cli::command();
    let commands = command.get_subcommands().flat_map(|command| {
        let name = command.get_name();
        let below = command.get_subcommands().filter(|below| !below.is_hide_set());
        let below: Vec<_> = below.map(|below| format!("{name} {}", below.get_name())).collect();
        if command.has_subcommands() { below } else { vec![name.to_owned()] }
    });
    let missing: Vec<String> = commands.filter(|whole| !is_in_the_table(whole)).collect();
    assert!(missing.is_empty(), "not in the README: {}", missing.join(", "));
}
