//! The coordinator: whether it is there, whose certificate it shows, how it is, and what it takes us for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::Timestamp;
use rpc::{TlsFiles, server_certificate};

use super::certificates::lasting;
use super::finding::Finding;
use crate::clients::Clients;
use crate::clients::health::{self, HealthProbeReply, HealthProbeStatus};
use crate::failure::{CliError, error_chain};
use crate::profile::{ApiService, Profile};

/// Dates have whole seconds, and answers take time.
const CLOCK_SLACK: Duration = Duration::from_secs(2);
/// Beyond this tokens are refused.
const CLOCK_SKEW_MAX: Duration = identity::token::TOKEN_SKEW;
/// When a clock is off, and when certificates and tokens are.
const SET_CLOCK: &str = "set the clocks of both machines, best by NTP";

/// Everything about it.
pub(super) async fn look(profile: &Profile) -> Vec<Finding> {
    let ServerReachability { mut findings, away } = servers(profile).await;
    let is_away = |host: ApiService| profile.address_of(host).is_ok_and(|address| away.contains(address));
    if !away.is_empty()
        && ApiService::ALL.into_iter().all(|host| profile.address_of(host).is_err() || is_away(host))
    {
        // No address answers, which was reported: there is nothing else to check.
        return findings;
    }
    let mut dates = Vec::new();
    for host in ApiService::ALL.into_iter().filter(|host| !is_away(*host)) {
        let Ok(channel) = profile.channel_to(host) else { continue };
        let requested = Timestamp::now();
        let health = health::probe(channel, host).await;
        if let Ok(HealthProbeReply { date: Some(date), .. }) = &health {
            dates.push(ClockSample { requested, answered: Timestamp::now(), date: *date });
        }
        findings.push(service(host, health.map_err(CliError::from)));
    }
    findings.push(clock(&dates));
    if !is_away(ApiService::Storage) {
        findings.push(identity_there(profile).await);
    }
    findings.extend(intake(profile).await);
    findings
}

/// Checks that the profile's supervisor takes jobs; returns nothing where the profile names none.
async fn intake(profile: &Profile) -> Option<Finding> {
    const CHECK: &str = "intake";
    profile.address_of(ApiService::Supervisor).ok()?;
    let problem_request = async { Clients::new(profile)?.intake_problem().await };
    match problem_request.await {
        Ok(Some(problem)) if problem.is_empty() => Some(Finding::ok(CHECK, "the supervisor takes jobs")),
        Ok(Some(problem)) => {
            let (found, advice) = problem.split_once(": ").unwrap_or((&problem, ""));
            Some(Finding::fail(CHECK, format!("the supervisor {found}"), advice))
        }
        Ok(None) => Some(Finding::ok(CHECK, "shown to the admin only: use --as admin")),
        // Whether it is there is another check.
        Err(_) => None,
    }
}

/// Servers found at the addresses of a profile.
#[derive(Default)]
struct ServerReachability {
    findings: Vec<Finding>,
    /// Addresses that do not answer.
    away: BTreeSet<String>,
}

/// Each address once, with whose certificate it shows.
async fn servers(profile: &Profile) -> ServerReachability {
    const CHECK: &str = "coordinator";
    let mut addresses = BTreeMap::<&str, Vec<&str>>::new();
    for host in ApiService::ALL {
        match profile.address_of(host) {
            Ok(address) => addresses.entry(address).or_default().push(host.as_str()),
            Err(_) if host.is_optional() => {}
            Err(failure) => {
                let findings = vec![Finding::of_failure(CHECK, &failure.to_string())];
                return ServerReachability { findings, ..ServerReachability::default() };
            }
        }
    }
    let Some(ca) = &profile.ca else { return ServerReachability::default() };
    let ServerReachability { mut findings, mut away } = ServerReachability::default();
    for (address, hosts) in addresses {
        // Without our own certificate: whether that is accepted is another question.
        let shown =
            server_certificate(address, &TlsFiles::anonymous(ca), profile.server_name.as_deref()).await;
        findings.push(match shown {
            Err(error) => {
                let found = error_chain(&error);
                let advice = if found.contains("certificate") {
                    "it was not made by the authority that the profile names, is out of date, or carries another name: \
                     look at it there with `mycora pki show`"
                } else {
                    away.insert(address.to_owned());
                    "is it running? Start one with `mycora up`, or name another profile with --config"
                };
                Finding::fail(CHECK, format!("{found} ({})", hosts.join(", ")), advice)
            }
            Ok(certificate) => {
                let who = certificate.identity.as_ref();
                let who = who.map_or_else(|| certificate.subject.clone(), ToString::to_string);
                let again = "issue it anew there with `mycora pki issue`, or start `mycora up` again";
                lasting(CHECK, &format!("{address}: {who}"), &certificate, Timestamp::now(), again)
            }
        });
    }
    ServerReachability { findings, away }
}

fn service(host: ApiService, health: Result<HealthProbeReply, CliError>) -> Finding {
    let check = format!("service {}", host.as_str());
    match health {
        Err(failure) => Finding::of_failure(check, &failure.to_string()),
        Ok(HealthProbeReply { condition: HealthProbeStatus::Serving, .. }) => Finding::ok(check, "serves"),
        Ok(HealthProbeReply { condition: HealthProbeStatus::NotServing, .. }) => Finding::fail(
            check,
            "answers, but does not serve",
            "it is starting, stopping or lacks something: /readyz on its ops port says what, to callers with the token",
        ),
        Ok(HealthProbeReply { condition: HealthProbeStatus::Absent, .. }) if host == ApiService::Saga => {
            Finding::ok(check, "is not offered here, which is all right where there are no sagas")
        }
        Ok(HealthProbeReply { condition: HealthProbeStatus::Absent, .. }) => Finding::warn(
            check,
            "is not offered at its address",
            format!(
                "name its own below [addresses] in the profile, as `{} = \"https://host:port\"`",
                host.as_str()
            ),
        ),
    }
}

/// A server's clock, read between two readings of ours.
struct ClockSample {
    requested: Timestamp,
    answered: Timestamp,
    date: Timestamp,
}

impl ClockSample {
    /// How far they are certainly apart.
    fn apart(&self) -> Duration {
        // The date was cut to whole seconds.
        let (earliest, latest) = (self.date, self.date + Duration::from_secs(1));
        if earliest > self.answered { earliest.since(self.answered) } else { self.requested.since(latest) }
    }
}

fn clock(dates: &[ClockSample]) -> Finding {
    const CHECK: &str = "clock";
    let Some(apart) = dates.iter().map(ClockSample::apart).max() else {
        let advice = "compare the clocks of both machines in another way";
        return Finding::warn(CHECK, "no server told the time, so it was not compared", advice);
    };
    let found = format!("{} s from the coordinator's", apart.as_secs());
    if apart <= CLOCK_SLACK {
        Finding::ok(CHECK, "agrees with the coordinator's, as far as whole seconds tell")
    } else if apart <= CLOCK_SKEW_MAX {
        Finding::warn(CHECK, found, SET_CLOCK)
    } else {
        Finding::fail(CHECK, format!("{found}: tokens and signatures are refused"), SET_CLOCK)
    }
}

/// Asks the coordinator for which identity it takes us.
async fn identity_there(profile: &Profile) -> Finding {
    const CHECK: &str = "identity";
    let identity_request = async { Ok::<_, CliError>(Clients::new(profile)?.who_am_i().await?) };
    match identity_request.await.map_err(|failure| failure.with_certificate(profile.cert.as_deref())) {
        Err(failure) => Finding::of_failure(CHECK, &failure.to_string()),
        Ok(answer) => {
            let roles = match answer.roles.len() {
                0 => String::new(),
                1 => ", with a role in 1 context".to_owned(),
                many => format!(", with roles in {many} contexts"),
            };
            Finding::ok(CHECK, format!("{}{roles}", answer.spiffe_id))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingLevel;
    use super::*;

    #[test]
    fn clocks_are_apart_only_as_far_as_is_certain() {
        let at = |secs: u64| Timestamp::from_millis(secs * 1000 + 500);
        let level = |requested, answered, date: u64| {
            let date = Timestamp::from_millis(date * 1000);
            clock(&[ClockSample { requested: at(requested), answered: at(answered), date }]).level
        };
        assert_eq!(level(100, 100, 100), FindingLevel::Ok);
        assert_eq!(level(100, 104, 102), FindingLevel::Ok, "somewhere in between");
        assert_eq!(level(100, 100, 98), FindingLevel::Ok);
        assert_eq!(level(100, 100, 110), FindingLevel::Warn);
        assert_eq!(level(100, 100, 60), FindingLevel::Fail);
        assert_eq!(level(100, 100, 140), FindingLevel::Fail);
        assert!(clock(&[]).found.contains("no server told the time"));
    }
}
