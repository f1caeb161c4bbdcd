//! One binary: every service in one process, and the command line.

fn main() -> std::process::ExitCode {
    sandbox::launch_if_asked(&[runner::ENGINE]);
    mycora_cli::cli::main()
}
