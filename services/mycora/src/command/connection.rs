//! `mycora connection`: how the coordinator is reached, and as whom. Its help has the options that all commands take for that.

use serde_json::json;

use super::{GlobalFlags, find_profile, profile_path};
use crate::failure::CliError;
use crate::output;
use crate::output::table;
use crate::profile::{ApiService, Profile};

/// Shown below the options.
pub const AFTER_HELP: &str = "\
Every command takes these options. The profile provides what they do not: the file named by --config or MYCORA_CONFIG, else client.toml in \
$XDG_DATA_HOME/mycora or ~/.local/share/mycora. Its keys are address, ca, cert, key, signing_key, trust_domain, server_name, context, \
actor and tenant, and below [addresses] scheduler, storage, runner-registry, router, mycelium-gateway, supervisor and saga. [profiles.NAME] holds \
the settings that --as NAME overrides. Paths in it are relative to the file.

Examples:
  mycora connection
  mycora --as admin connection";

/// Shows what the options, the environment and the profile say together.
///
/// # Errors
/// When there is no profile, or it cannot be used.
pub fn run(global: &GlobalFlags) -> Result<(), CliError> {
    let profile = find_profile(global)?;
    let file = profile_path(global)?;
    let file = file.exists().then(|| file.display().to_string());
    let rows = rows(file.as_deref(), global.profile.as_deref(), &profile);
    let document = || {
        rows.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect::<serde_json::Map<_, _>>()
    };
    output::answer(global.output, document, || table::pairs(&rows))
}

fn rows<'a>(file: Option<&str>, name: Option<&str>, profile: &Profile) -> Vec<(&'a str, String)> {
    let path = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let number = |id: u32| (id != 0).then(|| id.to_string());
    let text = |text: Option<&str>| text.map(str::to_owned);
    let mut rows = vec![
        ("profile", text(file)),
        ("as", text(name)),
        ("address", profile.address.clone()),
        ("ca", path(&profile.ca)),
        ("cert", path(&profile.cert)),
        ("key", path(&profile.key)),
        ("signing_key", path(&profile.signing_key)),
        ("server_name", profile.server_name.clone()),
        ("trust_domain", profile.trust_domain.clone()),
        ("context", number(profile.context)),
        ("actor", number(profile.actor)),
        ("tenant", profile.tenant.clone()),
    ];
    let elsewhere = |host: &ApiService| {
        profile.address_of(*host).ok().filter(|at| Some(*at) != profile.address.as_deref())
    };
    rows.extend(ApiService::ALL.iter().map(|host| (host.as_str(), text(elsewhere(host)))));
    rows.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
