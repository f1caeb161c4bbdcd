//! `mycora token`: who we are, for programs that know nothing of the key.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use model::{ActorId, Timestamp};
use serde::Serialize;

use super::{GlobalFlags, find_profile_unless, values};
use crate::failure::CliError;
use crate::output::{self, OutputFormat};
use crate::token::{HOLDS_MAX, TokenSigner};

/// Shown below the options.
pub const AFTER_HELP: &str = "\
The token is signed locally, with the key that the actor is registered with; no server is called. Calls that change actors, contexts or runners accept each token only once.

Examples:
  grpcurl -cacert ca.pem -H \"$(mycora token --header)\" localhost:7700 list
  mycora token --signing-key actor-2.ed25519 --actor 2 --holds 60s";

/// Arguments of `token`.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// The actor's Ed25519 key, in PEM [default: the profile's `signing_key`]
    #[arg(long, value_name = "FILE")]
    pub signing_key: Option<PathBuf>,
    /// The actor who owns that key [default: the profile's `actor`]
    #[arg(long, value_name = "ID", value_parser = values::id)]
    pub actor: Option<u32>,
    /// How long it is valid, at most 300s
    #[arg(long, value_name = "TIME", default_value = "300s", value_parser = holds)]
    pub holds: Duration,
    /// Print the whole header: `authorization: Bearer …`
    #[arg(long)]
    pub header: bool,
}

fn holds(text: &str) -> Result<Duration, String> {
    match yaml::duration(text) {
        Some(length) if !length.is_zero() && length <= HOLDS_MAX => Ok(length),
        Some(_) => Err(format!("a token counts for {} s at most, and not for no time", HOLDS_MAX.as_secs())),
        None => Err("write it as 90s or 5m".to_owned()),
    }
}

/// The token, for programs.
#[derive(Debug, Serialize)]
struct TokenDocument {
    token: String,
    actor: ActorId,
    audience: String,
    expires: String,
}

/// Prints a token; needs no coordinator.
///
/// # Errors
/// When there is no key, or its actor is not known.
pub fn run(args: &TokenArgs, global: &GlobalFlags) -> Result<(), CliError> {
    let mut global = global.clone();
    global.token_key = args.signing_key.clone().or(global.token_key);
    global.token_actor = args.actor.or(global.token_actor);
    let signer = find_profile_unless(&global, global.token_key.is_some())?.token_signer()?;
    let now = Timestamp::now();
    let token = signer.sign(now, args.holds);
    let text = || if args.header { format!("authorization: Bearer {token}\n") } else { format!("{token}\n") };
    match global.output {
        // A token that was not read is lost: fail.
        OutputFormat::Table => output::print_or_fail(&text()),
        format => output::answer(format, || document(&signer, &token, now + args.holds), text),
    }
}

fn document(signer: &TokenSigner, token: &str, expires: Timestamp) -> TokenDocument {
    TokenDocument {
        token: token.to_owned(),
        actor: signer.actor(),
        audience: signer.audience(),
        expires: expires.rfc3339(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_count_for_a_time_that_is_allowed() {
        assert_eq!(holds("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(holds("1s"), Ok(Duration::from_secs(1)));
        for wrong in ["", "0s", "301s", "1h", "60", "soon"] {
            assert!(holds(wrong).is_err(), "{wrong}");
        }
    }
}
