//! One binary: every service in one process, and the command line.

fn main() -> std::process::ExitCode {
    mycora_cli::cli::main()
}
