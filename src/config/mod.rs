//! Options by name: the only reader of environment variables. Also called: configuration.

#[cfg(feature = "dist")]
pub(crate) mod address;
#[cfg(feature = "cuda")]
mod devices;
#[cfg(feature = "dist")]
mod job;
#[cfg(feature = "dist")]
mod launch;

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "cuda")]
pub(crate) use devices::{CudaChoice, DeviceSettings};
#[cfg(feature = "dist")]
pub(crate) use job::{AcceptedTokens, Integrity, JobConfig, Secrets};
#[cfg(feature = "dist")]
pub(crate) use launch::JobPart;
#[cfg(feature = "dist")]
pub use launch::{LaunchEnvironment, expand_hosts};

use crate::digest::DigestSettings;
use crate::error::{Error, Result, fail};
use crate::kernel::{Isa, SumOrder};
use crate::suggest;

/// The format of an option's value.
enum OptionForm {
    Number {
        least: i64,
        most: i64,
    },
    YesNo,
    OneOf(&'static [&'static str]),
    /// The first and the last of some rounds.
    Rounds,
    /// `all`, or numbers of devices.
    Devices,
    /// `embedded`, or a number of servers.
    Servers,
    Text,
    /// A text that is never shown.
    Secret,
}

use OptionForm::{Devices, Number, OneOf, Rounds, Secret, Servers, Text, YesNo};

/// The value of `servers` with which each process of a worker has a server, and the first one the scheduler.
pub(crate) const EMBEDDED: &str = "embedded";

/// Times up to a year, in milliseconds.
const MS: OptionForm = Number { least: 1, most: 31_536_000_000 };
const COUNT: OptionForm = Number { least: 1, most: 65_536 };
const CONNECTIONS: OptionForm = Number { least: 2, most: MOST_CONNECTIONS as i64 };
/// Two files share them, and a line takes some hundred bytes.
const LOG_BYTES: OptionForm = Number { least: 65_536, most: 1 << 40 };
const BYTES: OptionForm = Number { least: 4_096, most: 1 << 40 };
/// A slice travels in one message, of at most 1 GiB.
const SLICE_BYTES: OptionForm = Number { least: 4_096, most: 1 << 30 };

/// Every option of every store type, so that one source serves them all.
const OPTIONS: &[(&str, OptionForm)] = &[
    ("threads", Number { least: 1, most: MOST_THREADS }),
    ("isa", OneOf(&["auto", "scalar", "avx2", "avx512", "neon"])),
    ("timeout_ms", Number { least: -1, most: 31_536_000_000 }),
    ("updater_undo", YesNo),
    ("sum_order", OneOf(&["linear", "tree"])),
    ("digests", OneOf(&["off", "values", "all"])),
    ("digest_log", Text),
    ("digest_log_bytes", LOG_BYTES),
    ("cuda", Text),
    ("devices", Devices),
    ("device_bytes", BYTES),
    ("device_checks", YesNo),
    ("device_wait", YesNo),
    ("updater_memory", OneOf(&["host", "device"])),
    #[cfg(feature = "fault-injection")]
    ("fault", Text),
    // Options of the distributed types.
    ("job", Text),
    ("root", Text),
    ("role", OneOf(&["worker", "reader", "server", "scheduler"])),
    ("rank", Number { least: 0, most: 65_535 }),
    ("num_workers", COUNT),
    ("num_servers", COUNT),
    ("servers", Servers),
    ("bind", Text),
    ("start_timeout_ms", MS),
    ("peer_timeout_ms", MS),
    ("max_rounds_ahead", COUNT),
    ("staleness", Number { least: 0, most: i64::MAX }),
    ("slice_bytes", SLICE_BYTES),
    ("hold_bytes", BYTES),
    ("on_worker_loss", OneOf(&["fail", "continue"])),
    ("server_updater", YesNo),
    ("shm", YesNo),
    ("transport", OneOf(&["auto", "shm", "ucx", "tcp"])),
    ("connections", CONNECTIONS),
    ("token", Secret),
    ("token_file", Text),
    ("token_by_rank", YesNo),
    ("integrity", YesNo),
    ("tls_ca_file", Text),
    ("tls_cert_file", Text),
    ("tls_key_file", Text),
    ("tls_verify_names", YesNo),
    ("insecure", YesNo),
    ("metrics", Text),
    ("trace", Text),
    ("trace_rounds", Rounds),
];

const MOST_THREADS: i64 = 256;

/// Most connections of a worker with a server.
pub(crate) const MOST_CONNECTIONS: u8 = 16;

/// Options for [`Store::open`](crate::Store::open), by name; docs/use/config.md lists them.
///
/// An option that is not set comes from the environment variable `KV_<NAME>`, else it has its
/// default.
#[derive(Clone, Default)]
pub struct Config {
    values: BTreeMap<String, String>,
}

impl Config {
    /// No option set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets one option; the last value set for a name counts.
    ///
    /// # Errors
    /// `Option` for an unknown name (the message lists near ones) or a value that does not fit;
    /// nothing is changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        check(name, value).map_err(|reason| fail!(Option, "config: {reason}"))?;
        self.values.insert(name.into(), value.into());
        Ok(())
    }

    /// Sets one option and gives the options back, for chains.
    ///
    /// # Errors
    /// As [`Config::set`].
    pub fn with(mut self, name: &str, value: &str) -> Result<Self> {
        self.set(name, value)?;
        Ok(self)
    }

    /// The value of an option: set here, else in the environment, else None.
    ///
    /// # Errors
    /// `Option` for an unknown name, or a value in the environment that does not fit.
    #[cfg(feature = "dist")]
    pub fn get(&self, name: &str) -> Result<Option<String>> {
        if OPTIONS.iter().all(|(known, _)| *known != name) {
            check(name, "").map_err(|text| fail!(Option, "config: {text}"))?;
        }
        job::get(self, name)
    }

    /// The value set here, else in the environment.
    fn find(&self, name: &str) -> Result<Option<String>> {
        if let Some(value) = self.values.get(name) {
            return Ok(Some(value.clone()));
        }
        self.find_in(name, &format!("KV_{}", name.to_uppercase()))
    }

    /// The value of an option in an environment variable.
    #[allow(clippy::unused_self, reason = "the environment is part of every configuration")]
    fn find_in(&self, name: &str, variable: &str) -> Result<Option<String>> {
        match env::var(variable) {
            // An empty variable counts as unset: that is how a shell unsets one for a single
            // command.
            Ok(value) if value.is_empty() => Ok(None),
            Ok(value) => match check(name, &value) {
                Ok(()) => Ok(Some(value)),
                Err(reason) => Err(fail!(Option, "environment variable {variable}: {reason}")),
            },
            Err(env::VarError::NotPresent) => Ok(None),
            Err(env::VarError::NotUnicode(_)) => {
                Err(fail!(Option, "environment variable {variable} is not valid UTF-8"))
            }
        }
    }

    fn number(&self, name: &str) -> Result<Option<i64>> {
        Ok(self.find(name)?.and_then(|text| text.parse().ok()))
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |(name, value): (&String, &String)| {
            let secret =
                OPTIONS.iter().any(|(known, form)| known == name && matches!(form, Secret));
            (name.clone(), if secret { "(secret)".into() } else { value.clone() })
        };
        f.debug_map().entries(self.values.iter().map(shown)).finish()
    }
}

/// Names of networks that count as fabrics in tests, from a variable for them.
#[cfg(feature = "dist")]
pub(crate) fn counted_fabrics() -> Option<String> {
    env::var("KV_TEST_FABRICS").ok()
}

/// The secret number that a launcher has given to this process, from its variable; 0 without one.
#[cfg(feature = "dist")]
pub(crate) fn launch() -> u128 {
    let number = env::var("KV_LAUNCH").ok();
    number.and_then(|digits| u128::from_str_radix(&digits, 16).ok()).unwrap_or(0)
}

/// The rounds of an option such as `5-9`.
pub(crate) fn rounds(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.split_once('-')?;
    let rounds: (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    (rounds.0 >= 1 && rounds.0 <= rounds.1).then_some(rounds)
}

/// The reason why a value does not fit its option, if so.
fn check(name: &str, value: &str) -> std::result::Result<(), String> {
    let Some((_, form)) = OPTIONS.iter().find(|(known, _)| *known == name) else {
        let hint = suggest::near(name, "options", OPTIONS.iter().map(|(known, _)| *known));
        return Err(format!("there is no option {name:?}; {hint}"));
    };
    match *form {
        Number { least, most } => match value.parse::<i64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(()),
            _ => Err(format!("{name} is {value:?}; it must be a number from {least} to {most}")),
        },
        YesNo if matches!(value, "yes" | "no") => Ok(()),
        YesNo => Err(format!("{name} is {value:?}; it must be yes or no")),
        OneOf(words) if words.contains(&value) => Ok(()),
        OneOf(words) => Err(format!("{name} is {value:?}; it must be one of {}", words.join(", "))),
        Text | Secret if value.is_empty() => Err(format!("{name} is empty")),
        Text | Secret => Ok(()),
        Rounds if rounds(value).is_some() => Ok(()),
        Rounds => Err(format!("{name} is {value:?}; it must be two rounds, such as 1-10")),
        Devices if value == "all" || numbers(value).is_some() => Ok(()),
        Devices => Err(format!("{name} is {value:?}; it must be all, or numbers such as 0,1")),
        Servers if value == EMBEDDED || is_count(value) => Ok(()),
        Servers => Err(format!("{name} is {value:?}; it must be embedded, or a number of servers")),
    }
}

/// Whether a text is the number of some members of a job.
fn is_count(text: &str) -> bool {
    text.parse::<u32>().is_ok_and(|count| (1..=65_535).contains(&count))
}

/// The numbers of devices in a text.
fn numbers(text: &str) -> Option<Vec<u16>> {
    text.split(',').map(|number| number.parse().ok()).collect()
}

/// The options of a local store, with the right types.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) threads: usize,
    pub(crate) isa: Isa,
    /// None waits for ever.
    pub(crate) timeout: Option<Duration>,
    pub(crate) updater_undo: bool,
    pub(crate) sum_order: SumOrder<'static>,
    pub(crate) digests: DigestSettings,
    #[cfg(feature = "cuda")]
    pub(crate) devices: DeviceSettings,
    #[cfg(feature = "fault-injection")]
    pub(crate) fault: Option<String>,
}

impl Settings {
    pub(crate) fn new(config: &Config) -> Result<Self> {
        let create = |error: Error| error.at("create");
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = config.number("threads").map_err(create)?;
        let threads = threads.map_or(processors, |count| usize::try_from(count).unwrap_or(1));
        let isa = config.find("isa").map_err(create)?;
        let timeout = config.number("timeout_ms").map_err(create)?;
        let undo = config.find("updater_undo").map_err(create)?;
        let order = config.find("sum_order").map_err(create)?;
        let is_tree = order.as_deref() == Some("tree");
        // Options of jobs have no effect here, but a value that does not fit is an error in every
        // store: a job started later with the same environment would fail.
        OPTIONS.iter().try_for_each(|(name, _)| config.find(name).map(drop)).map_err(create)?;
        Ok(Self {
            threads: threads.min(usize::try_from(MOST_THREADS).unwrap_or(1)),
            isa: Isa::choose(isa.as_deref().unwrap_or("auto")).map_err(create)?,
            timeout: u64::try_from(timeout.unwrap_or(600_000)).ok().map(Duration::from_millis),
            updater_undo: undo.as_deref() == Some("yes"),
            sum_order: if is_tree { SumOrder::Tree } else { SumOrder::Linear },
            digests: digests(config).map_err(create)?,
            #[cfg(feature = "cuda")]
            devices: DeviceSettings::new(config).map_err(create)?,
            #[cfg(feature = "fault-injection")]
            fault: config.find("fault").map_err(create)?,
        })
    }
}

/// What a process digests.
fn digests(config: &Config) -> Result<DigestSettings> {
    let mode = config.find("digests")?;
    let folder = config.find("digest_log")?.map(PathBuf::from);
    let all = mode.as_deref() == Some("all");
    let values = all || mode.as_deref() == Some("values");
    if folder.is_some() && !values {
        return Err(fail!(
            Option,
            "digest_log is set, and digests is off; set digests=values, or digests=all"
        ));
    }
    let bytes = config.number("digest_log_bytes")?;
    let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(1 << 30);
    Ok(DigestSettings {
        #[cfg(feature = "dist")]
        values,
        all,
        folder,
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::Config;
    use crate::ErrorKind;

    #[cfg(feature = "dist")]
    #[test]
    fn the_longest_peer_timeout_that_can_be_set_is_the_longest_that_a_hello_says() {
        use kvstore_protocol::LONGEST_MS;
        for (ms, taken) in [(LONGEST_MS, true), (LONGEST_MS + 1, false)] {
            let set = Config::new().set("peer_timeout_ms", &ms.to_string());
            assert_eq!(set.is_ok(), taken, "{ms}");
        }
    }

    #[test]
    fn an_unknown_option_lists_near_ones() {
        let error = Config::new().set("thread", "2").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Option);
        assert!(error.message().contains("did you mean threads?"), "{error}");
        let error = Config::new().set("zzz", "2").unwrap_err();
        assert!(error.message().contains("the options are threads"), "{error}");
    }

    #[test]
    fn a_secret_is_not_shown() {
        let config = Config::new().with("token", "0123456789abcdef").unwrap();
        let text = format!("{config:?}");
        assert!(text.contains("token") && !text.contains("0123"), "{text}");
    }

    #[test]
    fn values_are_checked_also_for_other_store_types() {
        let mut config = Config::new();
        for (name, value) in
            [("threads", "0"), ("threads", "x"), ("updater_undo", "true"), ("rank", "-1")]
        {
            assert_eq!(
                config.set(name, value).unwrap_err().kind(),
                ErrorKind::Option,
                "{name}={value}"
            );
        }
        config.set("num_workers", "4").unwrap();
        config.set("threads", "2").unwrap();
    }
}
