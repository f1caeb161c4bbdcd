//! Certificates and keys: whose they are, and for how long.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use identity::{CertificateSummary, exposure};
use model::Timestamp;
use rpc::TlsFiles;

use super::finding::Finding;
use crate::failure::error_chain;
use crate::output::time;
use crate::profile::Profile;

/// With less than this left a certificate should be reissued.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// Checks the authorities that we trust, and our own certificate.
pub(super) fn look(profile: &Profile, now: Timestamp) -> Vec<Finding> {
    let mut findings = authorities(profile, now);
    match (&profile.ca, &profile.cert, &profile.key) {
        (Some(ca), Some(cert), Some(key)) => findings.push(own(ca, cert, key, now)),
        (_, None, None) if profile.shows_tokens() => {}
        (_, None, None) => findings.push(Finding::warn(
            "certificate",
            "the profile names neither a certificate nor a key that signs tokens: nobody is known",
            "`mycora pki issue actor/1` makes a certificate; or write `signing_key` and `actor` into the profile",
        )),
        _ => findings.push(Finding::fail(
            "certificate",
            "`cert` and `key` belong together, and one of them is missing",
            "write both into the profile",
        )),
    }
    if profile.signing_key.is_some() {
        findings.push(signing_key(profile));
    }
    findings
}

fn authorities(profile: &Profile, now: Timestamp) -> Vec<Finding> {
    const CHECK: &str = "authority";
    let Some(ca) = &profile.ca else {
        let advice = "write `ca = \"FILE\"` into the profile, or give --ca";
        return vec![Finding::fail(CHECK, "the profile names no certificate authority", advice)];
    };
    let bundle = match CertificateSummary::all_from_pem_file(ca) {
        Ok(bundle) => bundle,
        Err(error) => {
            return vec![Finding::fail(CHECK, error_chain(&error), "name another file with --ca")];
        }
    };
    let of_each = |authority: &CertificateSummary| {
        let who =
            authority.authority_of().map_or_else(|| authority.subject.clone(), |domain| domain.to_string());
        let who = format!("{}: {who}", ca.display());
        if !authority.is_ca {
            return Finding::warn(
                CHECK,
                format!("{who} may not sign others"),
                "name the authority's own certificate",
            );
        }
        lasting(CHECK, &who, authority, now, "make another one with `mycora pki init`")
    };
    bundle.iter().map(of_each).collect()
}

fn own(ca: &Path, cert: &Path, key: &Path, now: Timestamp) -> Finding {
    const CHECK: &str = "certificate";
    const CLOSE: &str = "close it; when others could write, make it anew with `mycora pki`";
    let closed = exposure::check_trusted(ca).and_then(|()| exposure::check_trusted(cert));
    if let Err(exposed) = closed.and_then(|()| exposure::check_secret(key)) {
        return Finding::fail(CHECK, exposed.to_string(), CLOSE);
    }
    let summary = match CertificateSummary::from_pem_file(cert) {
        Ok(summary) => summary,
        Err(error) => return Finding::fail(CHECK, error_chain(&error), "name another file with --cert"),
    };
    let who = summary.identity.as_ref().map_or_else(|| summary.subject.clone(), ToString::to_string);
    let who = format!("{}: {who}", cert.display());
    let again = "issue it anew with `mycora pki issue`";
    let lasts = lasting(CHECK, &who, &summary, now, again);
    if lasts.level == super::finding::FindingLevel::Fail {
        return lasts;
    }
    if summary.identity.is_none() {
        return Finding::fail(CHECK, format!("{who} is no identity of a suite"), again);
    }
    if let Err(error) = TlsFiles::new(ca, cert, key).check_own() {
        let found = format!("{}, as {} sees it", error_chain(&error), ca.display());
        return Finding::fail(CHECK, found, "use certificate, key and authority of one `mycora pki`");
    }
    match readable_by_others(key) {
        true => Finding::warn(
            CHECK,
            format!("other users can read {}", key.display()),
            format!("chmod 600 {}", key.display()),
        ),
        false => lasts,
    }
}

fn signing_key(profile: &Profile) -> Finding {
    const CHECK: &str = "signing key";
    match profile.token_signer() {
        Err(failure) => Finding::of_failure(CHECK, &failure.to_string()),
        Ok(signer) => {
            let path = profile.signing_key.as_deref().unwrap_or(Path::new(""));
            let shown = path.display();
            if readable_by_others(path) {
                let found = format!("other users can read {shown}");
                return Finding::warn(CHECK, found, format!("chmod 600 {shown}"));
            }
            let used = if profile.shows_tokens() { "every call shows" } else { "`mycora token` makes" };
            let (actor, audience) = (signer.actor(), signer.audience());
            Finding::ok(CHECK, format!("{shown}: {used} tokens of actor {actor} for {audience}"))
        }
    }
}

/// Checks that a certificate is valid now, and for how long.
pub(super) fn lasting(
    check: &str,
    who: &str,
    certificate: &CertificateSummary,
    now: Timestamp,
    again: &str,
) -> Finding {
    let (from, until) = (time::utc(certificate.not_before), time::utc(certificate.not_after));
    if now > certificate.not_after {
        return Finding::fail(check, format!("{who} ended at {until}"), again);
    }
    if now < certificate.not_before {
        return Finding::fail(
            check,
            format!("{who} begins at {from}"),
            "is the clock of this machine right?",
        );
    }
    let found = format!("{who}, until {until}");
    match certificate.not_after.since(now) < SOON {
        true => Finding::warn(check, found, again),
        false => Finding::ok(check, found),
    }
}

/// Returns true when others than its owner may read the file. A missing file is reported elsewhere.
fn readable_by_others(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0)
}
