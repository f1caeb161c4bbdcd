//! Ways out for words that flow files do not know.

/// Returns a hint for an unknown key that other workflow tools have; keys that are merely spelt alike get none.
pub(super) fn key_hint(key: &str, known: &[&str]) -> Option<String> {
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
