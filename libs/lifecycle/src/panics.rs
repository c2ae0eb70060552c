//! One log line for a panic, with the task it hit and without what could be a user's text.

use std::panic::PanicHookInfo;

use crate::tasks;

/// Logs panics as error events in place of the standard hook's text on standard error. Call it
/// once in `main`, after the logs are set up.
///
/// A message put together at run time is withheld: it can hold part of a prompt (a failed string
/// slice quotes the string). Fixed messages and the place in the source are logged.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|info| {
        let location = info.location().map(ToString::to_string).unwrap_or_default();
        let task = tasks::current_name().unwrap_or("none");
        tracing::error!(
            task.name = task,
            panic.location = location,
            panic.message = fixed_message(info),
            "panic"
        );
    }));
}

fn fixed_message<'a>(info: &'a PanicHookInfo<'_>) -> &'a str {
    info.payload().downcast_ref::<&'static str>().copied().unwrap_or("[withheld]")
}
