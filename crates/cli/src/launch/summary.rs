//! The summary at the end of a job: how each process ended.

use std::time::Duration;

use crate::ending::ExitReason;
use crate::launch::processes::all::JobProcess;
use crate::launch::state::JobState;

/// A line for each process, and last the cause of the job's end.
pub(crate) fn lines(members: &[JobProcess], job: &JobState) -> Vec<String> {
    let width = members.iter().map(|member| member.title().len()).max().unwrap_or(0);
    let mut all: Vec<(usize, &JobProcess)> = members.iter().enumerate().collect();
    all.sort_by_key(|(_, member)| (member.name.role as u8, member.name.rank));
    let mut lines: Vec<String> = all
        .into_iter()
        .map(|(index, member)| format!("{:width$} {}", member.title(), how(member, index, job)))
        .collect();
    if let Some((member, ending)) = job.first_failure() {
        let title = members[member].title();
        lines.push(format!("failed because {title} ended first, with {ending}"));
    } else if job.cannot_start {
        lines.push("failed because a worker ended without having called kv_create".into());
    } else if let Some(signal) = job.stopped_by() {
        lines.push(format!("stopped by {}", ExitReason::Signal(signal)));
    }
    lines
}

fn how(member: &JobProcess, index: usize, job: &JobState) -> String {
    if let Some(why) = &member.refusal {
        return format!("was not started: {why}");
    }
    let number = member.number.map_or(String::new(), |number| format!("process {number}, "));
    match (job.ending(index), job.ended_at(index)) {
        (Some(ending), Some(at)) => {
            let age = span(at.saturating_duration_since(member.started));
            format!("ended with {ending} ({number}after {age})")
        }
        _ => format!("could not be killed ({number}still there)"),
    }
}

/// A duration in readable units.
fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::span;

    #[test]
    fn times_are_short_whatever_they_are() {
        let said = [0.04, 12.34, 59.94, 75.0, 3600.0, 93_784.0]
            .map(|it| span(Duration::from_secs_f64(it)));
        assert_eq!(said, ["0.0 s", "12.3 s", "59.9 s", "1 min 15 s", "1 h 0 min", "26 h 3 min"]);
    }
}
