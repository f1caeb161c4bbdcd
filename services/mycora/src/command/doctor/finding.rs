//! Findings of `doctor`: each check with its result, and what to do about it.

use serde::Serialize;

use crate::output::table;

/// How it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingLevel {
    /// All is as it should be.
    Ok,
    /// The subject works, and could be better.
    Warn,
    /// The subject does not work.
    Fail,
}

impl FindingLevel {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How it is.
    pub level: FindingLevel,
    /// Subject of the check.
    pub check: String,
    /// Result of the check.
    pub found: String,
    /// Advice on what to do; empty where nothing has to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub advice: String,
}

impl Finding {
    /// Builds a finding for a check that passed.
    pub(super) fn ok(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self { level: FindingLevel::Ok, check: check.into(), found: found.into(), advice: String::new() }
    }

    /// Builds a finding for a subject that works, and could be better.
    pub(super) fn warn(
        check: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { level: FindingLevel::Warn, check: check.into(), found: found.into(), advice: advice.into() }
    }

    /// Builds a finding for a subject that does not work.
    pub(super) fn fail(
        check: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { level: FindingLevel::Fail, check: check.into(), found: found.into(), advice: advice.into() }
    }

    /// Builds a failure from a text: its first line is the finding, the others are the advice.
    pub(super) fn of_failure(check: impl Into<String>, text: &str) -> Self {
        let (found, advice) = text.split_once('\n').unwrap_or((text, ""));
        Self::fail(check, found, advice.replace('\n', "; "))
    }
}

/// Everything that was looked at.
#[derive(Debug, Serialize)]
pub struct DoctorReport {
    /// Nothing fails. What could be better does not count.
    pub well: bool,
    /// In the order in which one thing needs the other.
    pub findings: Vec<Finding>,
}

impl DoctorReport {
    pub(super) fn new(findings: Vec<Finding>) -> Self {
        Self { well: findings.iter().all(|finding| finding.level < FindingLevel::Fail), findings }
    }

    /// For people: what was found, and below it what to do.
    #[must_use]
    pub fn text(&self) -> String {
        let widest = self.findings.iter().map(|finding| finding.check.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for Finding { level, check, found, advice } in &self.findings {
            let (level, found) = (level.as_str(), table::shown_whole(found));
            text.push_str(&format!("{level:<4}  {check:<widest$}  {found}\n"));
            if !advice.is_empty() {
                let advice = table::shown_whole(advice);
                text.push_str(&format!("{:<4}  {:<widest$}  → {advice}\n", "", ""));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_stands_below_what_was_found() {
        let report = DoctorReport::new(vec![
            Finding::ok("profile", "client.toml"),
            Finding::warn("redis", "appendonly no", "set `appendonly yes`"),
        ]);
        assert!(report.well, "what could be better works");
        let text = "ok    profile  client.toml\nwarn  redis    appendonly no\n               → set `appendonly yes`\n";
        assert_eq!(report.text(), text);
        let failed = Finding::of_failure("identity", "actor 1 is not known\nregister it\nor another");
        assert_eq!(
            (failed.found.as_str(), failed.advice.as_str()),
            ("actor 1 is not known", "register it; or another")
        );
        assert!(!DoctorReport::new(vec![failed]).well);
    }
}
