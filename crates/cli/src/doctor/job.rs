//! Whether the process fits the job that is running.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvstore::{ErrorKind, State, View};

use super::case::DoctorContext;
use super::{CheckResult, Finding, bad, skipped};
use crate::observe::show::{cells, table, units};

/// Maximum difference of correct clocks. Processes are identified by the time of their start.
const MOST_SKEW_MS: u64 = 2_000;
/// Minimum bandwidth of a network for training.
const LEAST_BYTES_PER_S: f64 = 10e6;

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Whether the certificate and the token of this process can be used.
pub(crate) fn credentials(case: &mut DoctorContext) -> CheckResult {
    let given = |name: &&str| case.option(name).is_some();
    let names = ["token", "token_file", "tls_ca_file", "tls_cert_file", "tls_key_file"];
    let given: Vec<&str> = names.into_iter().filter(|name| given(name)).collect();
    if given.is_empty() {
        let kept = case.root().and_then(|root| kvstore::JobFile::find(&root));
        return Ok(match kept {
            Some(file) => format!("the token that `kvstore run` keeps in {}", file.display()),
            None => "none: enough for a job on the loopback that was started by hand".into(),
        });
    }
    case.root().ok_or_else(|| skipped("no root is given"))?;
    match case.open() {
        Ok(_) => Ok(format!("{} can be used", given.join(", "))),
        Err(error) => Err(bad(
            error.message().trim_start_matches("observe: "),
            "`kvstore certs` makes certificates and tokens; docs/operate/security.md says who needs which",
        )),
    }
}

/// Whether the listener is a scheduler of this release.
pub(crate) fn answer(case: &mut DoctorContext) -> CheckResult {
    if !case.reached {
        return Err(skipped("nothing was reached"));
    }
    if matches!(case.observer, Some(Err(_))) {
        return Err(skipped("the credentials cannot be used"));
    }
    let timeout = case.timeout;
    let looked = match case.open() {
        Ok(observer) => observer.look(timeout),
        Err(error) => Err(error.clone()),
    };
    let view = looked.map_err(|error| judge_answer(error.kind(), error.message()))?;
    let text = format!("a scheduler of kvstore: {}", table::verdict(&view).1);
    (case.seen_ms, case.view) = (now_ms(), Some(view));
    Ok(text)
}

pub(crate) fn judge_answer(kind: ErrorKind, text: &str) -> Finding {
    let todo = match kind {
        ErrorKind::Refused if text.contains("not let in") => {
            "give all processes of the job the same authority (tls_ca_file) and certificates of it, or \
             the same token; `kvstore certs` makes them"
        }
        ErrorKind::Refused => "install the same release of the library on all machines",
        ErrorKind::Timeout => {
            "something else listens at this port, the scheduler is stopped, or it is of a release \
             before this command: look at the process there"
        }
        _ => "look at the output of the scheduler",
    };
    bad(text, todo)
}

fn view(case: &DoctorContext) -> Result<&View, Finding> {
    case.view.as_ref().ok_or_else(|| skipped("no scheduler has answered"))
}

/// Whether the process expects the job that is running.
pub(crate) fn world_size(case: &mut DoctorContext) -> CheckResult {
    let view = view(case)?;
    let (workers, servers) = (case.number("num_workers"), case.number("num_servers"));
    let differs = |ours: Option<u32>, theirs: u32| ours.is_some_and(|ours| ours != theirs);
    let theirs = format!("{} workers and {} servers", view.num_workers, view.num_servers);
    if differs(workers, view.num_workers) || differs(servers, view.num_servers) {
        let ours = |number: Option<u32>| number.map_or("?".into(), |number| number.to_string());
        return Err(bad(
            format!(
                "this process expects {} workers and {} servers, the job has {theirs}",
                ours(workers),
                ours(servers)
            ),
            "start all processes with the same num_workers and num_servers",
        ));
    }
    Ok(format!("the job has {theirs}"))
}

/// Whether its rank is free.
pub(crate) fn rank(case: &mut DoctorContext) -> CheckResult {
    let view = view(case)?;
    let rank = case.number("rank");
    let rank = rank.ok_or_else(|| skipped("no rank is set: the lowest free one will be taken"))?;
    let role = case.role();
    let room = if role == "server" { view.num_servers } else { view.num_workers };
    if role != "scheduler" && rank >= room {
        return Err(bad(
            format!("rank {rank} is too large: the job has {room} of this role"),
            "ranks begin at 0",
        ));
    }
    let taken = view.nodes.iter().find(|node| node.role == role && node.rank == rank);
    match taken {
        None => Ok(format!("{role} {rank} has not come yet")),
        Some(node) if matches!(node.state, State::Lost | State::Left) => Err(bad(
            format!("{role} {rank} was at {} and is gone", node.address),
            "it cannot join the running job again: start the job again, from its last checkpoint",
        )),
        Some(node) => Err(bad(
            format!("there is a {role} {rank} already, at {}", node.address),
            "give every process a rank of its own, or none; if this is that process, all is well",
        )),
    }
}

/// Whether the clocks of both machines agree.
pub(crate) fn clock(case: &mut DoctorContext) -> CheckResult {
    judge_clock(case.seen_ms, view(case)?.clock_ms)
}

pub(crate) fn judge_clock(ours_ms: u64, theirs_ms: u64) -> CheckResult {
    let skew = ours_ms.abs_diff(theirs_ms);
    if skew <= MOST_SKEW_MS {
        return Ok("this machine and the scheduler's agree".into());
    }
    let side = if ours_ms > theirs_ms { "ahead of" } else { "behind" };
    let skew = units::micros(skew.saturating_mul(1_000));
    Err(bad(
        format!("the clock of this machine is {skew} {side} the scheduler's"),
        "let both follow a time server: certificates have dates, and a process that is started again \
         is known by its later time",
    ))
}

/// Whether the other processes are healthy.
pub(crate) fn processes(case: &mut DoctorContext) -> CheckResult {
    let view = view(case)?;
    let ill = |node: &&kvstore::Node| matches!(node.state, State::Lost | State::Silent);
    let ill: Vec<String> = view.nodes.iter().filter(ill).map(cells::name).collect();
    if ill.is_empty() {
        return Ok(format!("{} are there, and all are heard", view.nodes.len()));
    }
    Err(bad(
        format!("lost or silent: {}", ill.join(", ")),
        "`kvstore status --format table` shows them; docs/operate/operations.md says what to do",
    ))
}

/// Bandwidth to the scheduler.
pub(crate) fn bandwidth(case: &mut DoctorContext) -> CheckResult {
    let (bytes, timeout) = (case.measure_bytes, case.timeout.max(Duration::from_secs(10)));
    let Some(Ok(observer)) = case.observer.as_mut().filter(|_| case.view.is_some()) else {
        return Err(skipped("no scheduler has answered"));
    };
    if case.loses_packets {
        return Err(skipped("packets of full size are lost"));
    }
    if bytes == 0 {
        return Err(skipped("it was not asked for"));
    }
    let measured = observer.measure(bytes, timeout);
    let broken = "the way is too slow to be measured, or breaks";
    let (rate, trip) = measured.map_err(|error| bad(error.message(), broken))?;
    judge_bandwidth(rate, trip)
}

pub(crate) fn judge_bandwidth(bytes_per_s: f64, trip: Duration) -> CheckResult {
    let trip = units::micros(u64::try_from(trip.as_micros()).unwrap_or(u64::MAX));
    let text = format!(
        "{}/s to the scheduler, {trip} for a message and its answer",
        units::bytes(bytes_per_s)
    );
    if bytes_per_s >= LEAST_BYTES_PER_S {
        return Ok(text);
    }
    Err(bad(text, "this is slow: look at the interface above, and whether another one leads there"))
}
