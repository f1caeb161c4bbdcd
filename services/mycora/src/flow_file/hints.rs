//! Ways out for words that flow files do not know.

/// A key that differs more than this from what was written is not suggested.
const LIKENESS_MIN: f64 = 0.75;

/// What takes the place of a key that others of this trade know; no key that is merely spelt alike is suggested.
pub(super) fn elsewhere(key: &str, known: &[&str]) -> Option<String> {
    let way = match key {
        "secrets" | "secret" => {
            "; what stands in a flow file or in a variable may be read by whoever may read the flow: keep a secret in a file \
             on the machine that its policy lets scripts read"
        }
        "requirements" | "packages" | "dependencies" => {
            "; install packages on the machine, or let the script do it, with `network: true`"
        }
        "image" | "container" => "; a script runs with what its machine has",
        "needs" | "depends_on" | "after" if known.contains(&"depends") => "; write `depends`",
        "run" | "command" | "cmd" if known.contains(&"script") => "; write `script`",
        "type" | "language" if known.contains(&"script_type") => "; write `script_type`",
        "if" if known.contains(&"when") => "; write `when`",
        _ => return None,
    };
    Some(way.to_owned())
}

/// `; did you mean …?` when one of `known` is alike, else nothing.
pub(super) fn did_you_mean(written: &str, known: &[&str]) -> String {
    let alike = known
        .iter()
        .map(|known| (strsim::jaro_winkler(&written.to_lowercase(), &known.to_lowercase()), known))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    alike.map(|(_, known)| format!("; did you mean `{known}`?")).unwrap_or_default()
}
