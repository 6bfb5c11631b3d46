//! The commands, as a user types them.
//!
//! Exit codes: 0 done, 1 failed, 64 the command line or the configuration is wrong (`EX_USAGE`).

mod check;
mod demo;
mod output;
mod run;
mod simulate;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// The command line or the configuration is wrong; `EX_USAGE` of sysexits.h.
const EXIT_USAGE: u8 = 64;

/// An edge gateway that acts on the spot and lets state changes out whenever the uplink is open.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway until SIGTERM or Ctrl-C.
    Run(ConfigArg),
    /// Read the configuration and say what is wrong with it, without starting anything.
    Check(ConfigArg),
    /// Publish the readings of simulated devices to a broker.
    Simulate(SimulateArgs),
    /// Run a gateway with simulated devices in this process, and watch it work.
    Demo(DemoArgs),
}

#[derive(Debug, clap::Args)]
struct ConfigArg {
    /// Configuration file; files in conf.d beside it are read after it.
    #[arg(long, value_name = "FILE", default_value = "/etc/tidegate/tidegate.toml")]
    config: PathBuf,
}

/// Arguments of `tidegate simulate`.
#[derive(Debug, Clone, clap::Args)]
struct SimulateArgs {
    /// Broker to publish to.
    #[arg(long, value_name = "HOST:PORT")]
    broker: String,
    /// Number of devices, each with its own connection.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    devices: u32,
    /// Messages a second of all devices together.
    #[arg(long, value_name = "PER_S", default_value_t = 100.0, value_parser = rate)]
    rate: f64,
    /// How long.
    #[arg(long = "for", value_name = "DURATION", default_value = "30s", value_parser = span)]
    span: Duration,
    /// Seed of the signals: the same seed gives the same readings.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Arguments of `tidegate demo`.
#[derive(Debug, Clone, clap::Args)]
struct DemoArgs {
    /// How long; a bare gateway (--devices 0) runs until Ctrl-C unless this is given.
    #[arg(long = "for", value_name = "DURATION", value_parser = span)]
    span: Option<Duration>,
    /// Print one JSON object at the end instead of the live view.
    #[arg(long)]
    json: bool,
    /// Keep the data here; without it they are thrown away at the end.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// MQTT listener; the next free port if it is taken.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:1883")]
    mqtt: SocketAddr,
    /// HTTP listener; the next free port if it is taken.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7480")]
    http: SocketAddr,
    /// Simulated devices; 0 is a bare gateway.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1000))]
    devices: u32,
    /// Messages a second of all devices together.
    #[arg(long, value_name = "PER_S", default_value_t = 200.0, value_parser = rate)]
    rate: f64,
    /// Send to this Kafka, too; its topics are made if they are missing.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',')]
    kafka: Vec<String>,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(help) => {
            let usage = help.use_stderr();
            // Nowhere is left to say that the terminal is gone.
            drop(help.print());
            return if usage { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match cli.command {
        Command::Run(args) => run::run(&args.config),
        Command::Check(args) => check::check(&args.config),
        Command::Simulate(args) => simulate::command(&args),
        Command::Demo(args) => demo::command(&args),
    }
}

/// A duration as in the configuration: `30s`, `10m`.
fn span(text: &str) -> Result<Duration, String> {
    text.parse::<crate::config::Span>().map(|span| span.0)
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if rate > 0.0 && rate <= 1_000_000.0 { Ok(rate) } else { Err("must be above 0 and at most 1000000".into()) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_documented_forms_are_taken() {
        for line in [
            "tidegate run",
            "tidegate run --config x.toml",
            "tidegate check --config x.toml",
            "tidegate simulate --broker 127.0.0.1:1883 --devices 5 --rate 10 --for 30s --seed 7",
            "tidegate demo",
            "tidegate demo --for 30s --json --data-dir d --mqtt 127.0.0.1:0 --http 127.0.0.1:0 --devices 3 --kafka a:1,b:2",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
        for line in ["tidegate", "tidegate demo --for 30", "tidegate simulate --broker x:1 --rate 0"] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
