//! The binary `tidegate`: parse, start, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate::cli::main()
}
