//! The commands, one file for each group.

pub mod actor;
pub mod attempt;
pub mod bootstrap;
pub mod cancel;
pub mod completions;
pub mod connection;
pub mod context;
pub mod delete;
pub mod demo;
pub mod doctor;
pub mod down;
pub mod explain;
mod failed_jobs;
pub mod flow;
pub mod gateway;
pub mod graph;
pub mod job;
pub mod list;
pub mod logs;
pub mod message;
pub mod nodes;
mod outage_notice;
pub mod outputs;
pub mod pki;
pub mod report;
mod resumable_watch;
pub mod retry;
pub mod runner;
pub mod saga;
pub mod schema;
pub mod signal;
pub mod signing;
pub mod submit;
pub mod supervisor;
pub mod token;
pub mod up;
pub mod validate;
pub(crate) mod values;
pub mod watch;
pub mod watch_all;

use std::path::PathBuf;

use clap::Args;

use crate::clients::Clients;
use crate::failure::CliError;
use crate::output::OutputFormat;
use crate::profile::{PROFILE_FILE, Profile, ProfileError, default_data_dir};

/// Flags that every command understands.
#[derive(Debug, Clone, Default, Args)]
pub struct GlobalFlags {
    /// Output format. `json` and `yaml` write one document to standard output
    #[arg(long, global = true, value_enum, default_value_t, env = "MYCORA_OUTPUT", help_heading = "Output")]
    pub output: OutputFormat,
    /// Show no progress
    #[arg(long, short, global = true, help_heading = "Output")]
    pub quiet: bool,
    /// Pass control characters from scripts and strangers to the terminal, instead of showing them as in \x1b. Pipes
    /// and files always get them
    #[arg(long, global = true, help_heading = "Output")]
    pub raw: bool,
    /// The context to work in [default: that of the flow file, else that of the profile]
    #[arg(long, global = true, value_name = "ID", env = "MYCORA_CONTEXT", value_parser = values::id, help_heading = "Connection")]
    pub context: Option<u32>,
    /// The profile, a TOML file [default: client.toml in the data directory]
    #[arg(long, global = true, value_name = "FILE", env = "MYCORA_CONFIG", help_heading = "Connection")]
    pub config: Option<PathBuf>,
    /// Use the named profile of the file, as in [profiles.admin]; `mycora up` creates `admin`
    #[arg(long = "as", global = true, value_name = "NAME", env = "MYCORA_AS", help_heading = "Connection")]
    pub profile: Option<String>,
    /// Address of the coordinator, as https://host:port. Overrides the profile, as do the following
    #[arg(long, global = true, value_name = "URL", env = "MYCORA_ADDRESS", help_heading = "Connection")]
    pub address: Option<String>,
    /// The certificate authority to trust, in PEM
    #[arg(long, global = true, value_name = "FILE", env = "MYCORA_CA", help_heading = "Connection")]
    pub ca: Option<PathBuf>,
    /// The client certificate, in PEM. Its key is expected beside it, as admin.key beside admin.pem, unless --key names it
    #[arg(long, global = true, value_name = "FILE", env = "MYCORA_CERT", help_heading = "Connection")]
    pub cert: Option<PathBuf>,
    /// The private key of the client certificate, in PEM
    #[arg(long, global = true, value_name = "FILE", env = "MYCORA_KEY", help_heading = "Connection")]
    pub key: Option<PathBuf>,
    /// Authenticate with tokens signed by this Ed25519 key instead of a certificate, as `signing_key` in the profile does
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "MYCORA_TOKEN_KEY",
        conflicts_with = "cert",
        help_heading = "Connection"
    )]
    pub token_key: Option<PathBuf>,
    /// The actor who owns that key [default: the profile's actor]
    #[arg(long, global = true, value_name = "ID", env = "MYCORA_TOKEN_ACTOR", value_parser = values::id, help_heading = "Connection")]
    pub token_actor: Option<u32>,
    /// The name in the server's certificate, when it is not the host of the address
    #[arg(long, global = true, value_name = "NAME", env = "MYCORA_SERVER_NAME", help_heading = "Connection")]
    pub server_name: Option<String>,
}

/// Flags, profile and clients that a command works with.
pub struct CliSession {
    /// Flags that every command understands.
    pub global: GlobalFlags,
    profile: Profile,
    /// Calls to the services.
    pub clients: Clients,
}

impl CliSession {
    /// Finds the profile and prepares to call. Must be called within a runtime.
    ///
    /// # Errors
    /// When there is no profile, or it cannot be used.
    pub fn open(global: GlobalFlags) -> Result<Self, CliError> {
        let profile = find_profile(&global)?;
        Self::with_profile(global, profile)
    }

    /// Prepares to call with this profile.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn with_profile(global: GlobalFlags, profile: Profile) -> Result<Self, CliError> {
        let clients = Clients::new(&profile)?;
        Ok(Self { global, profile, clients })
    }

    /// The context to work in.
    ///
    /// # Errors
    /// When nothing names one.
    pub fn context(&self) -> Result<u32, CliError> {
        self.context_or(None)
    }

    /// The context to work in, where a flow file may name one.
    ///
    /// # Errors
    /// When nothing names one.
    pub fn context_or(&self, file: Option<u32>) -> Result<u32, CliError> {
        let in_profile = Some(self.profile.context).filter(|id| *id != 0);
        self.global.context.or(file).or(in_profile).ok_or_else(|| {
            CliError::Invalid(
                "no context is named; give --context ID, or write `context = ID` into the profile".into(),
            )
        })
    }

    /// How the coordinator is reached.
    #[must_use]
    pub const fn profile(&self) -> &Profile {
        &self.profile
    }

    /// In whose name flows are submitted; 0 for the certificate's actor.
    #[must_use]
    pub const fn actor(&self) -> u32 {
        self.profile.actor
    }
}

/// Where the profile is, or would be.
fn profile_path(global: &GlobalFlags) -> Result<PathBuf, CliError> {
    match &global.config {
        Some(path) => Ok(path.clone()),
        None => Ok(default_data_dir()?.join(PROFILE_FILE)),
    }
}

fn find_profile(global: &GlobalFlags) -> Result<Profile, CliError> {
    find_profile_unless(global, global.address.is_some())
}

/// Finds the profile and applies the flags to it; if the flags are `enough`, no profile is needed.
fn find_profile_unless(global: &GlobalFlags, enough: bool) -> Result<Profile, CliError> {
    let is_named = global.config.is_some();
    let mut profile = match Profile::load_as(&profile_path(global)?, global.profile.as_deref()) {
        Ok(profile) => profile,
        Err(ProfileError::Missing { .. }) if !is_named && enough && global.profile.is_none() => {
            Profile::default()
        }
        Err(error @ ProfileError::Missing { .. }) if !is_named => {
            return Err(CliError::Unreachable(format!(
                "no coordinator is known: {error}\nstart one with `mycora up`, or name a profile with --config \
                 or MYCORA_CONFIG"
            )));
        }
        Err(error @ ProfileError::Missing { .. }) => {
            return Err(CliError::Invalid(format!(
                "{error}\nname another profile with --config or MYCORA_CONFIG; `mycora up` writes one into its data directory"
            )));
        }
        Err(error) => return Err(CliError::Invalid(error.to_string())),
    };
    override_with(&mut profile, global);
    Ok(profile)
}

fn override_with(profile: &mut Profile, global: &GlobalFlags) {
    let GlobalFlags { output: _, quiet: _, raw: _, context: _, config: _, profile: _, .. } = global;
    let GlobalFlags { address, ca, cert, key, .. } = global;
    let GlobalFlags { token_key, token_actor, server_name, .. } = global;
    if let Some(address) = address {
        profile.address = Some(address.clone());
        // One address on the command line means all services.
        profile.addresses = Default::default();
    }
    for (field, flag) in [(&mut profile.ca, ca), (&mut profile.cert, cert), (&mut profile.key, key)] {
        if flag.is_some() {
            field.clone_from(flag);
        }
    }
    // The profile's key belongs to the profile's certificate: that of another one stands beside it, unless it is named.
    if let (Some(cert), None) = (cert, key) {
        profile.key = Some(cert.with_extension("key"));
    }
    if token_key.is_some() {
        profile.signing_key.clone_from(token_key);
        (profile.cert, profile.key) = (None, None);
    }
    if let Some(actor) = token_actor {
        profile.actor = *actor;
    }
    if server_name.is_some() {
        profile.server_name.clone_from(server_name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_the_profile() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(PROFILE_FILE);
        std::fs::write(
            &path,
            "address = \"https://a:1\"\nca = \"ca.pem\"\ncontext = 1\n[addresses]\nstorage = \"https://s:1\"\n",
        )
        .expect("written");
        let global = GlobalFlags {
            config: Some(path),
            address: Some("https://b:2".into()),
            server_name: Some("n".into()),
            ..GlobalFlags::default()
        };
        let profile = find_profile(&global).expect("found");
        assert_eq!(profile.address.as_deref(), Some("https://b:2"));
        assert_eq!(profile.addresses, Default::default());
        assert_eq!(profile.ca, Some(dir.path().join("ca.pem")));
        assert_eq!(profile.server_name.as_deref(), Some("n"));
    }

    #[test]
    fn a_certificate_brings_its_own_key() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(PROFILE_FILE);
        std::fs::write(&path, "cert = \"a.pem\"\nkey = \"a.key\"\n").expect("written");
        let mut global =
            GlobalFlags { config: Some(path), cert: Some("pki/admin.pem".into()), ..GlobalFlags::default() };
        let profile = find_profile(&global).expect("found");
        assert_eq!((profile.cert, profile.key), (Some("pki/admin.pem".into()), Some("pki/admin.key".into())));
        global.key = Some("other.key".into());
        assert_eq!(find_profile(&global).expect("found").key, Some("other.key".into()));
    }

    #[test]
    fn a_key_for_tokens_goes_before_the_profiles_certificate() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(PROFILE_FILE);
        std::fs::write(&path, "cert = \"a.pem\"\nkey = \"a.key\"\nsigning_key = \"a.ed25519\"\nactor = 1\n")
            .expect("written");
        let mut global = GlobalFlags { config: Some(path), ..GlobalFlags::default() };
        let profile = find_profile(&global).expect("found");
        assert!(!profile.shows_tokens(), "there is a certificate");
        assert_eq!(profile.signing_key, Some(dir.path().join("a.ed25519")));
        global.token_key = Some("b.ed25519".into());
        global.token_actor = Some(2);
        let profile = find_profile(&global).expect("found");
        assert!(profile.shows_tokens());
        assert_eq!((profile.signing_key, profile.actor), (Some("b.ed25519".into()), 2));
    }

    #[test]
    fn a_named_profile_that_is_not_there_is_invalid_input() {
        let global = GlobalFlags { config: Some("/nowhere/client.toml".into()), ..GlobalFlags::default() };
        let failure = find_profile(&global).expect_err("not there");
        assert_eq!(failure.exit_code(), 2);
        assert!(failure.to_string().contains("/nowhere/client.toml"), "{failure}");
    }
}
