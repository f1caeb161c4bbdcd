//! Servers that want TLS and a login.

use std::path::{Path, PathBuf};
use std::process::Command;

use broker::{JetStream, JetStreamLogin, JetStreamOptions, JetStreamTls, MessageBroker as _};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use testkit::{PATIENCE, TestProcess, free_port, wait_until};

use crate::harness::connected;

/// A server that wants TLS with a certificate of its client, and a user with a password.
struct SecuredNats {
    _process: TestProcess,
    port: u16,
    dir: TempDir,
}

impl SecuredNats {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        write_certificates(dir.path());
        let port = free_port();
        let at = |name: &str| dir.path().join(name);
        let config = format!(
            "listen: 127.0.0.1:{port}\njetstream {{ store_dir: {:?} }}\n\
             authorization {{ user: ann, password: secret }}\n\
             tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}\n",
            at("store"),
            at("server.pem"),
            at("server.key"),
            at("ca.pem"),
        );
        std::fs::write(at("nats.conf"), config).expect("written");
        let mut process =
            TestProcess::spawn("nats-server", Command::new(program()).arg("-c").arg(at("nats.conf")));
        let _ = process.wait_for_line("Server is ready", PATIENCE);
        Self { _process: process, port, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// JetStreamOptions that this server takes.
    fn options(&self) -> JetStreamOptions {
        JetStreamOptions {
            login: Some(JetStreamLogin::Password { user: "ann".to_owned(), password: "secret".to_owned() }),
            tls: Some(JetStreamTls {
                ca: Some(self.path("ca.pem")),
                identity: Some((self.path("client.pem"), self.path("client.key"))),
            }),
            ..JetStreamOptions::new(&format!("nats://localhost:{}", self.port))
        }
    }
}

/// The server that other tests start as well.
fn program() -> PathBuf {
    let named = std::env::var_os("MYCORA_NATS_SERVER").map(PathBuf::from);
    let of_debian = || Some(PathBuf::from("/usr/sbin/nats-server")).filter(|path| path.exists());
    named.or_else(of_debian).unwrap_or_else(|| PathBuf::from("nats-server"))
}

fn write_certificates(dir: &Path) {
    let write = |name: &str, text: String| std::fs::write(dir.join(name), text).expect("written");
    let authority = || {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
    };
    let (ours, strange) = (authority(), authority());
    write("ca.pem", ours.pem());
    write("strange.pem", strange.pem());
    for name in ["server", "client"] {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &ours).expect("a certificate");
        write(&format!("{name}.pem"), certificate.pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_reached_by_tls_and_login() {
    let server = SecuredNats::start();
    let broker = JetStream::start(server.options()).expect("options that work");
    assert_eq!(connected(&broker, 0).await.generation, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_clients_get_the_reason_and_no_secret() {
    let server = SecuredNats::start();
    let tls = |ca: &str| JetStreamTls { ca: Some(server.path(ca)), ..server.options().tls.expect("TLS") };
    let stranger = JetStreamLogin::Password { user: "ann".to_owned(), password: "wrong".to_owned() };
    for (options, why) in [
        (JetStreamOptions { login: Some(stranger), ..server.options() }, "authorization violation"),
        (JetStreamOptions { login: None, ..server.options() }, "authorization violation"),
        (JetStreamOptions { tls: Some(tls("strange.pem")), ..server.options() }, "invalid peer certificate"),
        (JetStreamOptions { tls: Some(tls("none.pem")), ..server.options() }, "No such file"),
        (JetStreamOptions { tls: None, ..server.options() }, "invalid peer certificate"),
    ] {
        let broker = JetStream::start(options).expect("options that can be tried");
        let refused = async || {
            let error = broker.server().expect_err("nobody is let in").to_string();
            error.contains("cannot be reached").then_some(error)
        };
        let found = wait_until(refused, PATIENCE, "it was tried").await;
        assert!(found.contains(why), "{found}, expected: {why}");
        assert!(!found.contains("wrong") && !found.contains("secret"), "{found}");
    }
}
