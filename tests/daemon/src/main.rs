//! The stand-in as a program, with those arguments of the real one that tests use.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use stand_in::{Identity, Mesh, Node, Traps};

/// A stand-in for the Mycelium daemon
#[derive(Debug, Parser)]
struct Arguments {
    /// 32 bytes, made if need be
    #[arg(short, long, default_value = "priv_key.bin")]
    key_file: PathBuf,
    /// Neighbors: tcp://127.0.0.1:9651
    #[arg(long, num_args = 1.., value_parser = neighbor)]
    peers: Vec<SocketAddr>,
    /// Where neighbors link to it
    #[arg(short, long, default_value_t = 9651)]
    tcp_listen_port: u16,
    /// JSON-RPC, over HTTP and WebSocket
    #[arg(long, default_value = "127.0.0.1:8990")]
    jsonrpc_addr: SocketAddr,
    /// Not served
    #[arg(long)]
    api_addr: Option<SocketAddr>,
    /// The only way it works
    #[arg(long)]
    no_tun: bool,
    /// The only way it works
    #[arg(long)]
    disable_quic: bool,
    /// The only way it works
    #[arg(long)]
    disable_peer_discovery: bool,
    /// Bad habits: all, none, or names with commas between them
    #[arg(long, env = "MYCELIUM_STAND_IN_TRAPS", default_value = "all")]
    traps: Traps,
}

fn neighbor(text: &str) -> Result<SocketAddr, String> {
    let address = text.strip_prefix("tcp://").ok_or("tcp:// is the only protocol")?;
    address.parse().map_err(|error: std::net::AddrParseError| error.to_string())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> std::io::Result<()> {
    let identity = Identity::from_file(&arguments.key_file)?;
    let mesh = Mesh::default();
    let node = Node::on_mesh(identity, arguments.traps, mesh.clone());
    mesh.open(&node, arguments.tcp_listen_port, &arguments.peers).await?;
    let listener = TcpListener::bind(arguments.jsonrpc_addr)?;
    listener.set_nonblocking(true)?;
    let server = stand_in::serve(node, listener)?;
    println!("{} listens on {}", identity.ip, arguments.jsonrpc_addr);
    server.stopped().await;
    Ok(())
}
