//! Announcements (also called: broadcast): what the leader of a collective call tells the other workers. Servers
//! pass them on and do not use them.

use serde::{Deserialize, Serialize};

use super::Collective;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::worker::WorkerStore;

use super::StepOutcome;

/// An announcement, as workers propose it to the job.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Announcement {
    /// Each rank proposes itself as the leader of the call.
    Lead { rank: u32 },
    /// The rules of the leader's file follow, as a setting.
    Rules {},
    /// Keys in slices to re-place on a single server.
    Whole { keys: Vec<u64> },
    /// Keys of which the leader's file has residuals.
    Unsent { keys: Vec<u64> },
    /// The outcome of work that only the leader has done.
    Outcome { code: i32, failure: Option<String> },
}

impl Announcement {
    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn decode(fields: &[u8]) -> Result<Self> {
        serde_json::from_slice(fields)
            .map_err(|error| fail!(InvalidArgument, "an unreadable announcement: {error}"))
    }
}

impl WorkerStore {
    /// Elects the leader of a call: the lowest rank that is neither lost nor done. Each worker proposes
    /// itself, and server 0 lets the lowest rank decide. So all have one leader, whichever losses each of
    /// them knows.
    pub(crate) fn agree_on_leader(&self, collective: &mut Collective) -> Result<u32> {
        let call = collective.call;
        let own = Announcement::Lead { rank: self.rank }.encode();
        let (agreed, decided) = self.exchange(own, collective);
        if !decided.is_empty()
            && let Announcement::Lead { rank } = Announcement::decode(&decided)?
        {
            return Ok(rank);
        }
        agreed.map(|()| self.rank).map_err(|error| error.at(call))
    }

    /// Announces something to the other workers, as the leader.
    pub(crate) fn announce(
        &self,
        announcement: &Announcement,
        collective: &mut Collective,
    ) -> Result<()> {
        self.exchange(announcement.encode(), collective).0
    }

    /// Sends the outcome to the other workers.
    pub(crate) fn say(&self, result: Result<()>, collective: &mut Collective) -> Result<()> {
        let failure = result.as_ref().err().map(|error| error.message().to_owned());
        let code = result.as_ref().err().map_or(0, |error| error.kind().code());
        let told = self.announce(&Announcement::Outcome { code, failure }, collective);
        result.and(told)
    }

    /// Receives the next announcement of the leader; None for the outcome of success.
    pub(crate) fn hear(
        &self,
        leader: u32,
        collective: &mut Collective,
    ) -> Result<Option<Announcement>> {
        let call = collective.call;
        let (heard, fields) = self.exchange(Vec::new(), collective);
        heard.map_err(|error| error.at(call))?;
        check_leader(call, leader, &fields)?;
        match Announcement::decode(&fields)? {
            Announcement::Outcome { code, failure } => match failure {
                None => Ok(None),
                Some(text) => {
                    let kind = ErrorKind::ALL.iter().find(|kind| kind.code() == code);
                    let kind = kind.copied().unwrap_or(ErrorKind::Internal);
                    Err(Error::new(kind, format!("{call}: on worker {leader}: {text}")))
                }
            },
            announcement => Ok(Some(announcement)),
        }
    }

    /// Accepts the setting of the leader.
    pub(crate) fn adopt_setting(
        &self,
        leader: u32,
        collective: &mut Collective,
    ) -> Result<Vec<u8>> {
        let call = collective.call;
        let fields = self.agree(Vec::new(), collective).map_err(|error| error.at(call))?;
        check_leader(call, leader, &fields).map(|()| fields)
    }

    /// One agreement of a collective call; no fields propose nothing, and accept the leader's. Gives also the
    /// decision of the job, if it is another one.
    fn exchange(&self, fields: Vec<u8>, collective: &mut Collective) -> StepOutcome {
        collective.step_told(|_, deadline| {
            self.request_told(deadline, |worker, now, end| worker.agree(fields, now, end))
        })
    }
}

/// Nothing was decided if the leader was lost: then the next rank decides, which proposes nothing.
fn check_leader(call: &str, leader: u32, fields: &[u8]) -> Result<()> {
    if fields.is_empty() {
        return Err(fail!(
            PeerLost,
            "{call}: worker {leader}, which acted for all, was lost meanwhile; the same call on all \
             ranks begins anew with the next one"
        ));
    }
    Ok(())
}
