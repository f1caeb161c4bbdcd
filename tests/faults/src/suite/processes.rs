//! Ten processes, three of them schedulers, over one Redis, with a link wherever one calls another.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use testkit::{FaultProxy, ProxyTarget, RedisServer, SmallDisk, free_port, wait_until_blocking};

use super::program::run;
use super::{Form, Program, Suite, issue_stranger, place, text};

const SCHEDULERS: usize = 3;
const RUNNERS: usize = 2;
const SLOTS_EACH: usize = 6;
/// Services that a certificate is made for.
const SERVICES: [&str; 7] =
    ["storage", "runner-registry", "scheduler", "mycelium-gateway", "router", "supervisor", "runner"];
/// The database of the supervisor and its runners.
const POOL_DATABASE: u32 = 4095;
/// How long a requested stop may take, in seconds.
const DRAIN_SECS: &str = "2";

/// Settings that the start of each service needs.
struct Stage {
    data: PathBuf,
    witness_dir: PathBuf,
    coordinator: String,
    ports: BTreeMap<String, u16>,
    links: BTreeMap<String, FaultProxy>,
}

pub(super) async fn start(dir: TempDir, disk: Option<SmallDisk>) -> Suite {
    let data = place(&dir, disk.as_ref()).join("data");
    for folder in ["redis", "work"] {
        std::fs::create_dir_all(data.join(folder)).expect("a directory");
    }
    let redis = RedisServer::builder()
        .persistent()
        .config("notify-keyspace-events Kl")
        .config(&format!("dir {}", text(&data.join("redis"))))
        .start();
    let coordinator = certificates(&data.join("pki"));
    let token = data.join("ops.token");
    std::fs::write(&token, "0".repeat(64)).expect("written");
    std::fs::set_permissions(&token, Permissions::from_mode(0o600)).expect("it is ours");
    let mut stage = Stage {
        data: data.clone(),
        witness_dir: dir.path().to_owned(),
        coordinator,
        ports: BTreeMap::new(),
        links: BTreeMap::new(),
    };
    let names = names();
    for name in &names {
        stage.ports.insert(name.clone(), free_port());
    }
    stage.lay_links(&redis).await;
    let programs = names.iter().map(|name| (name.clone(), stage.start(name))).collect();
    write_profile(&stage);
    bootstrap(&stage);
    issue_stranger(&data.join("pki"));
    let leases = (1..=SCHEDULERS).map(|replica| format!("scheduler-{replica}-storage")).collect();
    let shares = (1..=RUNNERS).map(|replica| format!("runner-{replica}-redis")).collect();
    let doors = (1..=SCHEDULERS).map(|replica| stage.through(&format!("client-{replica}"))).collect();
    Suite {
        form: Form::Processes,
        programs,
        links: stage.links,
        redis: Some(redis),
        leases,
        shares,
        doors,
        data,
        slots: RUNNERS * SLOTS_EACH,
        disk,
        dir,
    }
}

/// The processes, those first that others need.
fn names() -> Vec<String> {
    let replicas = |service: &str, count: usize| (1..=count).map(move |n| format!("{service}-{n}")).collect();
    let one = |service: &str| vec![service.to_owned()];
    let all: [Vec<String>; 7] = [
        one("storage"),
        one("runner-registry"),
        replicas("scheduler", SCHEDULERS),
        one("mycelium-gateway"),
        one("router"),
        one("supervisor"),
        replicas("runner", RUNNERS),
    ];
    all.concat()
}

/// Returns true if a process runs scripts, or supervises those that do.
fn is_of_pool(name: &str) -> bool {
    matches!(program(name).0, "supervisor" | "runner")
}

/// Which program a process is, and which replica of it.
fn program(name: &str) -> (&str, &str) {
    let replica = name.rsplit_once('-').filter(|(_, number)| number.bytes().all(|b| b.is_ascii_digit()));
    replica.unwrap_or((name, "1"))
}

/// Makes an authority and a certificate for every process; returns the coordinator's root key.
fn certificates(pki: &Path) -> String {
    let dir = text(pki);
    run("mycora", &["pki", "init", "--dir", dir]);
    for service in SERVICES {
        run("mycora", &["pki", "issue", &format!("service/{service}"), "--dir", dir]);
    }
    run("mycora", &["pki", "issue", "actor/1", "--dir", dir]);
    run("mycora", &["pki", "root", "--dir", dir])
}

impl Stage {
    fn address(&self, name: &str) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports[name]))
    }

    fn through(&self, link: &str) -> String {
        format!("https://{}", self.links[link].address())
    }

    fn redis_through(&self, link: &str, database: u32) -> String {
        format!("redis://{}/{database}", self.links[link].address())
    }

    async fn lay_links(&mut self, redis: &RedisServer) {
        let mut wanted: Vec<(String, ProxyTarget)> = vec![
            ("storage-redis".to_owned(), ProxyTarget::Unix(redis.socket())),
            ("gateway-supervisor".to_owned(), ProxyTarget::Tcp(self.address("supervisor"))),
            ("router-gateway".to_owned(), ProxyTarget::Tcp(self.address("mycelium-gateway"))),
        ];
        // Each has its own: what one was given while its answer is lost, another one finds.
        for user in names().into_iter().filter(|name| is_of_pool(name)) {
            wanted.push((format!("{user}-redis"), ProxyTarget::Unix(redis.socket())));
        }
        for user in ["router", "mycelium-gateway", "runner-registry"] {
            wanted.push((format!("{user}-storage"), ProxyTarget::Tcp(self.address("storage"))));
        }
        for replica in 1..=SCHEDULERS {
            let scheduler = format!("scheduler-{replica}");
            wanted.push((format!("client-{replica}"), ProxyTarget::Tcp(self.address(&scheduler))));
            wanted.push((format!("{scheduler}-storage"), ProxyTarget::Tcp(self.address("storage"))));
        }
        for (name, target) in wanted {
            self.links.insert(name, FaultProxy::start(target).await);
        }
    }

    fn start(&self, name: &str) -> Program {
        let (service, replica) = program(name);
        let pki = self.data.join("pki");
        let file = |name: &str, extension: &str| text(&pki.join(format!("{name}.{extension}"))).to_owned();
        let https = |name: &str| format!("https://{}", self.address(name));
        let storage = self.links.get(&format!("{name}-storage"));
        let storage = storage.map_or_else(|| https("storage"), |link| format!("https://{}", link.address()));
        let redis = if is_of_pool(name) {
            self.redis_through(&format!("{name}-redis"), POOL_DATABASE)
        } else {
            self.redis_through("storage-redis", 0)
        };
        let mut environment = vec![
            ("MYCORA_LISTEN", self.address(name).to_string()),
            ("MYCORA_OPS_LISTEN", "127.0.0.1:0".to_owned()),
            ("MYCORA_OPS_TOKEN_FILE", text(&self.data.join("ops.token")).to_owned()),
            ("MYCORA_TLS_CA", file("ca", "pem")),
            ("MYCORA_TLS_CERT", file(service, "pem")),
            ("MYCORA_TLS_KEY", file(service, "key")),
            ("MYCORA_REDIS_URL", redis),
            ("MYCORA_WORK_DIR", text(&self.data.join("work")).to_owned()),
            ("MYCORA_STORAGE", storage),
            ("MYCORA_RUNNER_REGISTRY", https("runner-registry")),
            ("MYCORA_MYCELIUM_GATEWAY", self.through("router-gateway")),
            ("MYCORA_RUNNER_ADDRESSES", "127.0.0.1".to_owned()),
            ("MYCORA_COORDINATOR", self.coordinator.clone()),
            ("MYCORA_DURABILITY", "synced".to_owned()),
            ("MYCORA_DRAIN_SECS", DRAIN_SECS.to_owned()),
            ("MYCORA_INSTANCE", replica.to_owned()),
            ("MYCORA_SLOTS", SLOTS_EACH.to_string()),
            ("MYCORA_TYPES", "shell".to_owned()),
            ("MYCORA_ALLOW_WRITE", text(&self.witness_dir).to_owned()),
        ];
        if service == "mycelium-gateway" {
            environment.push(("MYCORA_SIGNING_KEY", file(service, "signing.key")));
            environment.push(("MYCORA_SIGNING_CERTIFICATE", file(service, "signing.json")));
        }
        let environment = environment.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Program::start(name, &format!("mycora-{service}"), Vec::new(), environment)
    }
}

fn write_profile(stage: &Stage) {
    let pki = stage.data.join("pki");
    let https = |name: &str| format!("https://{}", stage.address(name));
    let profile = format!(
        "ca = \"{pki}/ca.pem\"\ncert = \"{pki}/actor-1.pem\"\nkey = \"{pki}/actor-1.key\"\ncontext = 1\nactor = 1\n\n\
         [addresses]\nscheduler = \"{}\"\nstorage = \"{}\"\nrunner-registry = \"{}\"\nrouter = \"{}\"\n\
         mycelium-gateway = \"{}\"\nsupervisor = \"{}\"\n",
        https("scheduler-1"),
        https("storage"),
        https("runner-registry"),
        https("router"),
        https("mycelium-gateway"),
        https("supervisor"),
        pki = text(&pki),
    );
    std::fs::write(stage.data.join("client.toml"), profile).expect("written");
}

/// Makes the first actor, context and runners, as soon as the services can.
fn bootstrap(stage: &Stage) {
    let runner = format!("grpc://{}", stage.links["gateway-supervisor"].address());
    let (config, admin) = (stage.data.join("client.toml"), stage.data.join("pki/admin.pem"));
    let arguments = ["--config", text(&config), "bootstrap", "--admin", text(&admin), "--runner", &runner];
    let made = || {
        let output = std::process::Command::new(super::program::built("mycora")).args(arguments).output();
        output.is_ok_and(|output| output.status.success()).then_some(())
    };
    wait_until_blocking(made, testkit::PATIENCE, "the suite takes its first actor, context and runners");
}
