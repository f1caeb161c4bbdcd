//! Version of a build.

use std::sync::LazyLock;

/// Returns the version of this build: that of the packages, and in parentheses the commit, where `MYCORA_COMMIT` named one when it
/// was compiled. Builds that are shipped name it; others change with every edit.
#[must_use]
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> =
        LazyLock::new(|| describe(env!("CARGO_PKG_VERSION"), option_env!("MYCORA_COMMIT")));
    &VERSION
}

fn describe(package: &str, commit: Option<&str>) -> String {
    match commit.filter(|commit| !commit.is_empty()) {
        Some(commit) => format!("{package} ({commit})"),
        None => package.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shipped_build_names_its_commit() {
        assert_eq!(describe("1.2.3", Some("0123456789ab")), "1.2.3 (0123456789ab)");
        assert_eq!(describe("1.2.3", Some("")), "1.2.3");
        assert_eq!(describe("1.2.3", None), "1.2.3");
        assert!(version().starts_with(env!("CARGO_PKG_VERSION")));
    }
}
