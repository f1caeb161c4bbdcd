//! The life of a small service.

use std::future::pending;

use clap::Args;

use super::*;
use crate::readiness::ReadinessCondition;

/// Behaviour of the small service's only task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    /// Ends when it is told to.
    Obeys,
    /// Never ends.
    Hangs,
    /// Fails at once.
    Fails,
    /// Panics at once.
    Panics,
}

#[derive(Debug, Args)]
struct Config {
    #[arg(long, default_value_t = 3)]
    slots: u64,
    #[arg(skip)]
    script: Option<Script>,
}

/// Parts that a test prepares, and its access to the running service.
#[derive(Debug)]
struct Script {
    task: Task,
    opened: tokio::sync::oneshot::Sender<(Readiness, ReadinessCondition)>,
}

struct Small;

impl App for Small {
    const NAME: &'static str = "small";
    const ABOUT: &'static str = "A service for tests";
    const GRPC_PORT: Option<u16> = Some(7999);
    const OPS_PORT: u16 = 7998;
    type Config = Config;

    fn limits(config: &Config) -> ServiceLimits {
        ServiceLimits::from([("slots_max", config.slots)])
    }

    async fn start(config: Config, host: ServiceHost) -> Result<(), Failure> {
        let Script { task, opened } = config.script.ok_or("a test without a script")?;
        host.listener.ok_or("no listener")?;
        let shutdown = host.shutdown.clone();
        host.tasks.spawn("only", async move {
            match task {
                Task::Obeys => shutdown.begun().await,
                Task::Hangs => pending().await,
                Task::Fails => return Err("it broke".into()),
                Task::Panics => panic!("it broke"),
            }
            Ok(())
        });
        let condition = host.readiness.condition("storage");
        drop(opened.send((host.readiness, condition)));
        Ok(())
    }
}

fn flags() -> (CommonFlags, Config) {
    let args = ["small", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--drain-secs", "5"];
    let matches = command::<Small>().get_matches_from(args);
    let common = CommonFlags::from_arg_matches(&matches).expect("good flags");
    (common, Config::from_arg_matches(&matches).expect("good flags"))
}

fn is_success(code: ExitCode) -> bool {
    format!("{code:?}") == format!("{:?}", ExitCode::SUCCESS)
}

async fn ends_with(task: Task) -> ExitCode {
    let (common, mut config) = flags();
    let (opened, _running) = tokio::sync::oneshot::channel();
    config.script = Some(Script { task, opened });
    live::<Small>(common, AdminFlags::default(), config, Shutdown::new()).await.expect("started")
}

#[test]
fn flags_have_the_defaults_of_the_service() {
    command::<Small>().debug_assert();
    let matches = command::<Small>().get_matches_from(["small"]);
    let common = CommonFlags::from_arg_matches(&matches).expect("good flags");
    assert_eq!(common.listen, Some(SocketAddr::from(([127, 0, 0, 1], 7999))));
    assert_eq!(common.ops_listen, Some(OpsAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 7998)))));
    assert_eq!(common.ops_access(), OpsAccess::NoOne);
    let missing = common.tls.required().expect_err("no files were named").to_string();
    assert!(missing.contains("--tls-ca, --tls-cert, --tls-key"), "{missing}");
}

#[test]
fn the_limits_of_serving_are_shown_with_those_of_the_service() {
    let (common, config) = flags();
    let limits = limits::<Small>(&config, common.serving.actors);
    assert_eq!(limits.get("slots_max"), Some(&3));
    assert_eq!(limits.get("rpc_message_bytes_max"), Some(&(4 * 1024 * 1024)));
    assert_eq!(limits.get("env_entries_max"), Some(&256), "what all hold to");
    assert_eq!(limits.len(), 1 + model::limits::TABLE.len() + rpc::LIMITS.len());
}

#[test]
fn flags_of_admin_routes_are_those_of_services_that_have_them() {
    let wrong = command::<Small>().try_get_matches_from(["small", "--admin-secret-file", "a"]);
    assert_eq!(wrong.expect_err("it has no such routes").kind(), clap::error::ErrorKind::UnknownArgument);
    assert!(!limits::<Small>(&flags().1, flags().0.serving.actors).contains_key("admin_body_bytes_max"));
}

#[tokio::test]
async fn a_mesh_has_a_port_of_its_own_and_is_named_completely() {
    let mesh = ["small", "--listen", "127.0.0.1:0", "--mesh", "istio", "--mesh-listen", "127.0.0.1:0"];
    assert!(command::<Small>().try_get_matches_from(mesh).is_err(), "whose accounts are ours?");
    let parse = |more: &[&str]| {
        let args = mesh.iter().copied().chain(["--mesh-namespace", "mycora"]).chain(more.iter().copied());
        let matches = command::<Small>().get_matches_from(args);
        CommonFlags::from_arg_matches(&matches).expect("good flags")
    };
    // Without certificates the other port would have no callers.
    let (listener, mesh) = grpc_ports(&parse(&[])).await.expect("free ports");
    assert!(listener.is_none() && mesh.is_some());
    let files = ["--tls-ca", "a", "--tls-cert", "b", "--tls-key", "c"];
    let (listener, mesh) = grpc_ports(&parse(&files)).await.expect("free ports");
    assert!(listener.is_some() && mesh.is_some());
    let (common, _) = flags();
    let (listener, mesh) = grpc_ports(&common).await.expect("free ports");
    assert!(listener.is_some() && mesh.is_none());
}

#[tokio::test]
async fn ready_after_its_conditions_and_ended_after_its_tasks() {
    let (common, mut config) = flags();
    let (opened, running) = tokio::sync::oneshot::channel();
    config.script = Some(Script { task: Task::Obeys, opened });
    let shutdown = Shutdown::new();
    let life = tokio::spawn(live::<Small>(common, AdminFlags::default(), config, shutdown.clone()));
    let (readiness, storage) = running.await.expect("started");
    assert!(!readiness.is_ready());
    storage.met();
    readiness.ready().await;
    shutdown.begin();
    assert!(is_success(life.await.expect("no panic").expect("no failure")));
    assert!(!readiness.is_ready());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_hangs_is_cut_at_the_deadline() {
    let (common, mut config) = flags();
    let (opened, running) = tokio::sync::oneshot::channel();
    config.script = Some(Script { task: Task::Hangs, opened });
    let shutdown = Shutdown::new();
    let life = tokio::spawn(live::<Small>(common, AdminFlags::default(), config, shutdown.clone()));
    let (_readiness, _storage) = running.await.expect("started");
    let begun = tokio::time::Instant::now();
    shutdown.begin();
    assert!(is_success(life.await.expect("no panic").expect("no failure")));
    assert!(begun.elapsed() >= Duration::from_secs(5));
}

#[tokio::test]
async fn a_failed_task_ends_the_process_with_a_failure() {
    assert!(!is_success(ends_with(Task::Fails).await));
    // The panic's own message goes to standard error; it is part of the test.
    assert!(!is_success(ends_with(Task::Panics).await));
}

#[tokio::test]
async fn a_port_in_use_is_named_with_the_way_out() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound");
    let (mut common, config) = flags();
    common.listen = Some(address);
    let error = live::<Small>(common, AdminFlags::default(), config, Shutdown::new())
        .await
        .expect_err("the port is taken");
    let text = error_chain(&*error);
    assert!(text.contains(&address.to_string()) && text.contains("--listen"), "{text}");
}
