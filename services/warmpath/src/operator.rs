//! The operator's commands: what is wanted of the fleet, over telemetry's admin API.
//!
//! - `settings`: where the API is and with what token
//! - `client`: one request, one answer or one clear failure
//! - `table`: tables for people; `-o json` has what the API said
//! - `backend`, `tenant`, `key`, `join_token`, `events`, `status`, `explain`: the commands

pub mod backend;
pub(crate) mod client;
pub mod events;
pub mod explain;
pub mod join_token;
pub mod key;
mod settings;
pub mod status;
mod table;
pub mod tenant;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use ::settings::EXIT_CONFIG;
use serde_json::Value;

use self::client::{Client, Failure};
pub use self::settings::Connection;
use self::table::Table;

/// Exit code where nobody answers (`EX_UNAVAILABLE` of BSD's `sysexits.h`).
const EXIT_UNAVAILABLE: u8 = 69;

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Table,
    /// For scripts: what the API said
    Json,
}

/// Runs an operator's command and turns its failure into one line and an exit code: 1 where the
/// API says no, 64 for settings that cannot be used, 69 where nobody answers.
pub fn run<C, F>(connection: &Connection, command: C) -> ExitCode
where
    C: FnOnce(Client, Format) -> F,
    F: Future<Output = Result<(), Failure>>,
{
    let outcome = (|| {
        let client = connection.client().map_err(Failure::Settings)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::Odd(format!("cannot start: {error}")))?;
        runtime.block_on(command(client, connection.output))
    })();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("warmpath: {}", printable(&failure.to_string()));
            match failure {
                Failure::Settings(_) => ExitCode::from(EXIT_CONFIG),
                Failure::Unreachable { .. } => ExitCode::from(EXIT_UNAVAILABLE),
                Failure::Refused { .. } | Failure::Odd(_) => ExitCode::FAILURE,
            }
        }
    }
}

/// Prints what the API said, or a table of it.
fn print(format: Format, said: &Value, table: impl FnOnce(&Value) -> Table) {
    match format {
        Format::Json => println!("{}", json(said)),
        Format::Table => print!("{}", table(said)),
    }
}

/// Whether a character could steer a terminal, or hide or turn round what stands beside it.
fn steers(c: char) -> bool {
    let code = u32::from(c);
    c.is_control() || matches!(code, 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff)
}

/// What others chose (names, URLs, words of an answer) must not steer the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if steers(c) { '\u{fffd}' } else { c }).collect()
}

/// What the API said, over several lines. The escapes are JSON's own: a script reads the same.
fn json(said: &Value) -> String {
    escaped(&format!("{said:#}"))
}

fn escaped(json: &str) -> String {
    json.chars().fold(String::with_capacity(json.len()), |mut out, c| {
        // Line feeds are only between values. Nothing that steers is beyond 16 bits.
        if c != '\n' && steers(c) {
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
        out
    })
}

/// A field by its path (`/observed/state`) as people read it; `-` where it is absent. Nothing in
/// it steers a terminal.
fn text(value: &Value, path: &str) -> String {
    match value.pointer(path) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => printable(text),
        Some(Value::Array(items)) if items.is_empty() => "-".to_owned(),
        Some(Value::Array(items)) => {
            let texts = items.iter().map(|item| text(item, ""));
            texts.collect::<Vec<_>>().join(",")
        }
        Some(other) => escaped(&other.to_string()),
    }
}

/// What is shown this once.
fn secret(said: &Value, field: &str) -> Result<String, Failure> {
    let secret = said[field].as_str().map(printable);
    secret.ok_or_else(|| Failure::Odd(format!("the answer has no {field}")))
}

/// The entries of a list.
fn items(said: &Value) -> impl Iterator<Item = &Value> {
    said["items"].as_array().into_iter().flatten()
}

/// A moment in milliseconds since 1970, as people read it, in UTC.
fn moment(milliseconds: &Value) -> String {
    let Some(milliseconds) = milliseconds.as_u64() else { return "-".to_owned() };
    let (days, seconds) = (milliseconds / 86_400_000, milliseconds / 1000 % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day since 1970: Hinnant's `civil_from_days`, for days that are not
/// negative. Years begin in March there, so that the leap day is the last one.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// A failure to add what exists, in words of the command line.
fn taken(failure: Failure, hint: &str) -> Failure {
    match failure {
        Failure::Refused { status: http::StatusCode::PRECONDITION_FAILED, code, detail } => {
            let status = http::StatusCode::PRECONDITION_FAILED;
            Failure::Refused { status, code, detail: format!("{detail}; {hint}") }
        }
        other => other,
    }
}
