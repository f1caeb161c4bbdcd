//! Visibility of the service's work, as the operator wants it.

use std::borrow::Cow;
use std::str::FromStr;

use clap::Args;
use model::CorrelationId;
use sha2::{Digest as _, Sha256};

/// A whole share, in thousandths of a percent.
const WHOLE: u32 = 100_000;
/// Digits that stand for a correlation that is not shown.
const HASH_DIGITS: usize = 16;

/// Flags for what traces, logs and metrics show.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct SagaVisibilityFlags {
    /// Show a short hash in place of each correlation, in traces and in the log
    #[arg(long, env = "MYCORA_REDACT_CORRELATION", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    redact_correlation: bool,
    /// Count some metrics of sagas by tenant: 100 of them by name, all others together
    #[arg(long, env = "MYCORA_METRICS_BY_TENANT", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    metrics_by_tenant: bool,
    /// Run this share of transitions twice and compare what they give, as in 1%
    #[arg(long, env = "MYCORA_VERIFY_SHARE", value_name = "PERCENT", default_value = "0%")]
    verify_share: SampleRate,
}

impl SagaVisibilityFlags {
    /// Returns the visibility that the flags ask for.
    #[must_use]
    pub const fn seeing(self) -> SagaVisibility {
        let Self { redact_correlation, metrics_by_tenant, verify_share } = self;
        SagaVisibility {
            redacts_correlations: redact_correlation,
            by_tenant: metrics_by_tenant,
            verify: verify_share,
        }
    }
}

/// Visibility of correlations and tenants, and the share of transitions that is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SagaVisibility {
    /// True if traces and lines of the log have a hash in place of each correlation.
    pub redacts_correlations: bool,
    /// True if metrics of tenants name them.
    pub by_tenant: bool,
    /// Share of transitions that is computed twice.
    pub verify: SampleRate,
}

impl SagaVisibility {
    /// A correlation as it is shown: as it is, or the first 16 digits of its SHA-256.
    #[must_use]
    pub fn correlation(self, correlation: &CorrelationId) -> Cow<'_, str> {
        if !self.redacts_correlations {
            return Cow::Borrowed(correlation.as_str());
        }
        let mut hash = hex::encode(Sha256::digest(correlation.as_str()));
        hash.truncate(HASH_DIGITS);
        Cow::Owned(hash)
    }
}

/// A share of many, from none of them to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleRate(u32);

impl SampleRate {
    /// All of them.
    pub const ALL: Self = Self(WHOLE);

    /// Draws whether one item is in the sample.
    #[must_use]
    pub fn draw(self) -> bool {
        self.0 > 0 && rand::random::<u32>() % WHOLE < self.0
    }
}

impl FromStr for SampleRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            format!("a share is a number from 0% to 100% with three decimals at most, as in 1%, not `{text}`")
        };
        let number = text.strip_suffix('%').ok_or_else(wrong)?;
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(part) || part.len() > 3 {
            return Err(wrong());
        }
        let number = |digits: &str| digits.parse::<u32>().map_err(|_| wrong());
        let share = number(whole)?.checked_mul(1000).ok_or_else(wrong)?;
        let share = share.checked_add(number(&format!("{part:0<3}"))?).ok_or_else(wrong)?;
        if share > WHOLE { Err(wrong()) } else { Ok(Self(share)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages() {
        for (text, share) in
            [("0%", 0), ("1%", 1000), ("0.5%", 500), ("12.345%", 12_345), ("0.001%", 1), ("100%", 100_000)]
        {
            assert_eq!(text.parse(), Ok(SampleRate(share)), "{text}");
        }
        for wrong in
            ["", "%", "1", "0.01", "101%", "100.1%", "-1%", "1.%", ".5%", "0.0001%", "1e1%", "99999999999%"]
        {
            let refused = wrong.parse::<SampleRate>().expect_err(wrong);
            assert!(refused.contains("as in 1%"), "{refused}");
        }
        assert!((0..1000).all(|_| SampleRate::ALL.draw() && !SampleRate::default().draw()));
    }

    #[test]
    fn a_correlation_is_shown_or_its_hash() {
        let correlation: CorrelationId = "ann@home.test".parse().expect("a correlation");
        assert_eq!(SagaVisibility::default().correlation(&correlation), "ann@home.test");
        let redacts = SagaVisibility { redacts_correlations: true, ..SagaVisibility::default() };
        let hash = hex::encode(Sha256::digest("ann@home.test"));
        assert_eq!(redacts.correlation(&correlation), hash[..16]);
    }
}
