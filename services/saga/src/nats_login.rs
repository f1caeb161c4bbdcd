//! Login of saga programs at a NATS server: flags that all of them share.

use std::path::PathBuf;

use broker::{JetStreamLogin, JetStreamOptions, JetStreamTls};
use clap::Args;

/// Flags for the identity of a program at the server of `--nats-url`, and for TLS.
#[derive(Debug, Clone, Default, Args)]
pub struct NatsLogin {
    /// User to log in as at the server of --nats-url
    #[arg(long, env = "MYCORA_NATS_USER", value_name = "NAME", requires = "nats_password_file")]
    nats_user: Option<String>,
    /// The password of that user, in a file
    #[arg(long, env = "MYCORA_NATS_PASSWORD_FILE", value_name = "FILE", requires = "nats_user")]
    nats_password_file: Option<PathBuf>,
    /// The token to log in with at that server, in a file
    #[arg(long, env = "MYCORA_NATS_TOKEN_FILE", value_name = "FILE", conflicts_with = "nats_user")]
    nats_token_file: Option<PathBuf>,
    /// Speak TLS with that server, whose certificate is of an authority that this machine trusts
    #[arg(long, env = "MYCORA_NATS_TLS", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    nats_tls: bool,
    /// Speak TLS with that server, whose certificate is of an authority in this file
    #[arg(long, env = "MYCORA_NATS_CA", value_name = "FILE")]
    nats_ca: Option<PathBuf>,
    /// Show that server this certificate, over TLS
    #[arg(long, env = "MYCORA_NATS_CERT", value_name = "FILE", requires = "nats_key")]
    nats_cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, env = "MYCORA_NATS_KEY", value_name = "FILE", requires = "nats_cert")]
    nats_key: Option<PathBuf>,
}

impl NatsLogin {
    /// Makes the options of a connection of this name.
    ///
    /// # Errors
    /// The file of a secret that cannot be read.
    pub fn options(&self, url: &str, name: &str) -> Result<JetStreamOptions, String> {
        let read = |what: &str, file: &PathBuf| {
            let secret = service::read_secret(file);
            let secret =
                secret.map_err(|error| format!("the {what} in {} cannot be read: {error}", file.display()));
            secret.map(|secret| secret.to_string())
        };
        let login = match (&self.nats_user, &self.nats_password_file, &self.nats_token_file) {
            (Some(user), Some(file), _) => {
                Some(JetStreamLogin::Password { user: user.clone(), password: read("password", file)? })
            }
            (_, _, Some(file)) => Some(JetStreamLogin::Token(read("token", file)?)),
            _ => None,
        };
        let (ca, identity) = (self.nats_ca.clone(), self.nats_cert.clone().zip(self.nats_key.clone()));
        let has_tls = self.nats_tls || ca.is_some() || identity.is_some();
        let tls = has_tls.then_some(JetStreamTls { ca, identity });
        Ok(JetStreamOptions { name: name.to_owned(), login, tls, ..JetStreamOptions::new(url) })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        login: NatsLogin,
    }

    fn options(flags: &[&str]) -> Result<JetStreamOptions, String> {
        let program = Program::try_parse_from(["program"].iter().chain(flags));
        program.map_err(|error| error.to_string())?.login.options("nats://a:4222", "me")
    }

    #[test]
    fn the_nats_login_follows_the_flags() {
        let dir = tempfile::tempdir().expect("a directory");
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "s3cret\n").expect("written");
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("closed");
        let secret = secret.to_str().expect("a text");
        let plain = options(&[]).expect("good");
        assert!(plain.login.is_none() && plain.tls.is_none(), "{plain:?}");
        let user = options(&["--nats-user", "u", "--nats-password-file", secret]).expect("good").login;
        assert!(
            matches!(user, Some(JetStreamLogin::Password { user, password }) if (&*user, &*password) == ("u", "s3cret"))
        );
        let token = options(&["--nats-token-file", secret]).expect("good").login;
        assert!(matches!(token, Some(JetStreamLogin::Token(token)) if token == "s3cret"));
        let system = options(&["--nats-tls"]).expect("good").tls.expect("TLS");
        assert!(system.ca.is_none() && system.identity.is_none());
        let own = ["--nats-ca", "ca.pem", "--nats-cert", "c.pem", "--nats-key", "k.pem"];
        let own = options(&own).expect("good").tls.expect("TLS");
        assert_eq!(own.ca, Some("ca.pem".into()));
        assert_eq!(own.identity, Some(("c.pem".into(), "k.pem".into())));
    }

    #[test]
    fn half_a_login_is_refused_by_name() {
        for (flags, named) in [
            (&["--nats-user", "u"][..], "--nats-password-file"),
            (&["--nats-cert", "c.pem"], "--nats-key"),
            (
                &["--nats-user", "u", "--nats-password-file", "p", "--nats-token-file", "t"],
                "--nats-token-file",
            ),
            (&["--nats-token-file", "/nowhere/token"], "/nowhere/token"),
        ] {
            let refused = options(flags).expect_err("refused");
            assert!(refused.contains(named), "{flags:?}: {refused}");
        }
    }
}
