//! Reasons why work waits although the service runs, as far as this replica knows.

use std::collections::BTreeMap;

use model::TenantId;
use service::InfoScope;

use super::App;
use crate::placement::listing::lanes_of;
use crate::placement::unowned;

/// Largest number of names of one kind that are shown.
const SHOWN_MAX: usize = 10;

/// Something that keeps the work of one tenant waiting.
struct TenantWait {
    tenant: TenantId,
    /// Subject of the wait, as in `quota` or `paused`.
    about: &'static str,
    why: String,
}

impl App {
    /// Returns why work waits: for each reason its subject, and one line. Tenants and their resources are named as far as the scope
    /// allows; otherwise they are counted.
    pub(crate) fn waits(&self, scope: &InfoScope) -> Vec<(String, String)> {
        match scope {
            InfoScope::NoTenant => counted(&self.of_tenants(None)),
            InfoScope::AllTenants => named(&self.of_tenants(None)),
            InfoScope::Tenant(tenant) => {
                let left_alone = self.left_alone(tenant).into_iter();
                left_alone.chain(named(&self.of_tenants(Some(tenant)))).collect()
            }
        }
    }

    /// Names the effects of a tenant that are not called for a while since their upstreams fail. `Health` shows all of them to operators.
    fn left_alone(&self, tenant: &TenantId) -> Option<(String, String)> {
        let catalog = self.definitions.catalog();
        let mut effects = self.upstreams.left_alone();
        effects.retain(|effect| catalog.effect(effect, tenant).is_some());
        let names: Vec<_> = effects.iter().map(ToString::to_string).collect();
        (!names.is_empty()).then(|| {
            let why = format!("their upstreams fail, and calls wait until one succeeds: {}", listed(&names));
            ("effects left alone".to_owned(), why)
        })
    }

    /// Lists the waits of all tenants, or of only one.
    fn of_tenants(&self, only: Option<&TenantId>) -> Vec<TenantWait> {
        let (view, tenants) = (self.view(), self.tenants.borrow().clone());
        let starving = self.definitions.usage().starving();
        let mut waits = Vec::new();
        for (tenant, _) in tenants.iter().filter(|(tenant, _)| only.is_none_or(|only| only == *tenant)) {
            let wait = |about, why| TenantWait { tenant: tenant.clone(), about, why };
            if let Some(full) = starving.get(tenant) {
                waits.push(wait("quota", format!("starts wait until there is room: {full}")));
            }
            if let Some(since) = view.decided.paused_since(tenant) {
                // Lanes of a paused tenant have no owner on purpose.
                waits.push(wait("paused", format!("since {}; ResumeTenant lets it go on", since.rfc3339())));
                continue;
            }
            let mut unowned: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for lane in lanes_of(&self.definitions, tenant) {
                if let Some(why) = unowned::why(&view.members, &lane) {
                    unowned.entry(why).or_default().push(lane.to_string());
                }
            }
            for (why, lanes) in unowned {
                waits.push(wait("no owner", format!("lanes {}: {why}", listed(&lanes))));
            }
        }
        waits
    }
}

/// Names what each tenant waits for, up to the limit.
fn named(waits: &[TenantWait]) -> Vec<(String, String)> {
    let line = |wait: &TenantWait| {
        let TenantWait { tenant, about, why } = wait;
        // Without tenants there is a single one, which has no name.
        let name =
            if tenant.as_str().is_empty() { (*about).to_owned() } else { format!("{about}, {tenant}") };
        (name, why.clone())
    };
    let mut lines = Vec::new();
    for (about, number) in counts(waits) {
        lines.extend(waits.iter().filter(|wait| wait.about == about).take(SHOWN_MAX).map(line));
        if number > SHOWN_MAX {
            lines.push((about.to_owned(), format!("and {} more", number - SHOWN_MAX)));
        }
    }
    lines
}

/// Counts what tenants wait for, without naming them.
fn counted(waits: &[TenantWait]) -> Vec<(String, String)> {
    let line = |(about, number): (&str, usize)| {
        (about.to_owned(), format!("{number} times; GetSagaServer tells whose, and why"))
    };
    counts(waits).into_iter().map(line).collect()
}

fn counts(waits: &[TenantWait]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for wait in waits {
        *counts.entry(wait.about).or_default() += 1;
    }
    counts
}

/// Joins names, up to the limit.
fn listed(names: &[String]) -> String {
    let shown = names.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
