//! What launchers of sites tell the processes that they start, in environment variables.

use std::env;
use std::fs;
use std::net::Ipv4Addr;

use super::hostlist::expand_hosts;

/// Ports for schedulers, below those that systems hand out themselves.
const FIRST_PORT: u16 = 20_000;
const PORTS: u64 = 10_000;
/// Programs between a launcher and its process: shells, wrappers that bind processors, debuggers.
const MOST_PARENTS: usize = 16;

/// One of the processes that a launcher has started with the same command.
#[derive(Clone, PartialEq, Eq)]
pub struct LaunchEnvironment {
    /// Command of the launcher, such as `srun`.
    pub launcher: &'static str,
    /// Number of this process, from 0.
    pub index: u32,
    /// The number of processes.
    pub count: u32,
    /// Host of the first process; None if the launcher does not say it.
    pub host: Option<String>,
    /// Port for the scheduler on that host. It follows from the name of the job, so that all processes
    /// have the same one; those of concurrent jobs rarely collide.
    pub port: u16,
    /// Identifies the processes among those of all jobs.
    pub job: String,
    /// A number that only processes of this job know.
    pub(super) secret: Option<String>,
}

/// What a process knows of how it was started.
struct ProcessOrigin<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    /// The number of the nearest process with a name among those that have started this one.
    parent: &'a dyn Fn(&str) -> Option<u32>,
}

impl ProcessOrigin<'_> {
    /// The value of a variable; an empty one counts as unset.
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.text(name)?.parse().ok()
    }

    /// The loopback if all `count` processes are on one machine, of which the launcher gives the number
    /// there.
    fn only_machine(&self, there: &str, count: u32) -> Option<String> {
        (self.number(there)? == count).then(|| Ipv4Addr::LOCALHOST.to_string())
    }
}

impl LaunchEnvironment {
    /// The environment of this process, if a launcher has started it that is known: torchrun and those that
    /// set its variables, mpirun of Open MPI, mpiexec of MPICH, srun.
    #[must_use]
    pub fn find() -> Option<Self> {
        Self::read(&ProcessOrigin { variable: &|name| env::var(name).ok(), parent: &parent_named })
    }

    /// In a batch script of Slurm mpirun and torchrun say more than srun, whose variables stay.
    fn read(origin: &ProcessOrigin<'_>) -> Option<Self> {
        [Self::torchrun, Self::open_mpi, Self::mpich, Self::slurm, Self::other_mpi]
            .into_iter()
            .find_map(|of_launcher| of_launcher(origin))
    }

    fn new(launcher: &'static str, index: u32, count: u32, job: String) -> Self {
        Self { launcher, index, count, host: None, port: port_of(&job), job, secret: None }
    }

    fn torchrun(origin: &ProcessOrigin<'_>) -> Option<Self> {
        let (index, count) = (origin.number("RANK")?, origin.number("WORLD_SIZE")?);
        let host = origin.text("MASTER_ADDR")?;
        let told = |name: &str| origin.text(name).unwrap_or_default();
        // A group of processes that is started again has another number, and maybe the same port.
        let job = format!(
            "torchrun-{}-{host}:{}-{}",
            told("TORCHELASTIC_RUN_ID"),
            told("MASTER_PORT"),
            told("TORCHELASTIC_RESTART_COUNT")
        );
        let here = origin.only_machine("LOCAL_WORLD_SIZE", count);
        Some(Self { host: here.or(Some(host)), ..Self::new("torchrun", index, count, job) })
    }

    fn open_mpi(origin: &ProcessOrigin<'_>) -> Option<Self> {
        let index = origin.number("OMPI_COMM_WORLD_RANK")?;
        let count = origin.number("OMPI_COMM_WORLD_SIZE")?;
        let id = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"];
        let job = id.iter().find_map(|name| origin.text(name)).unwrap_or_default();
        Some(Self {
            host: origin.only_machine("OMPI_COMM_WORLD_LOCAL_SIZE", count),
            // Random bits that mpirun hands to all processes, for networks that need a key.
            secret: origin.text("OMPI_MCA_orte_precondition_transports"),
            ..Self::new("mpirun", index, count, format!("mpirun-{job}"))
        })
    }

    /// Hydra, of MPICH and others. Without a number of the job, it is that of the process that has started
    /// those of this machine. srun sets the first two variables for programs of MPICH.
    fn mpich(origin: &ProcessOrigin<'_>) -> Option<Self> {
        origin.text("MPI_LOCALNRANKS")?;
        let found = Self::other_mpi(origin)?;
        let Some(proxy) = (origin.parent)("hydra_pmi_proxy") else { return Some(found) };
        let (index, count) = (found.index, found.count);
        let host = origin.only_machine("MPI_LOCALNRANKS", count);
        Some(Self { host, ..Self::new("mpiexec", index, count, format!("mpiexec-{proxy}")) })
    }

    fn other_mpi(origin: &ProcessOrigin<'_>) -> Option<Self> {
        let (index, count) = (origin.number("PMI_RANK")?, origin.number("PMI_SIZE")?);
        Some(Self::new("mpiexec", index, count, "mpiexec".into()))
    }

    fn slurm(origin: &ProcessOrigin<'_>) -> Option<Self> {
        let index = origin.number("SLURM_PROCID")?;
        let count = origin.number("SLURM_STEP_NUM_TASKS")?;
        let (job, step) = origin.text("SLURM_JOB_ID").zip(origin.text("SLURM_STEP_ID"))?;
        let list = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"];
        let list = list.iter().find_map(|name| origin.text(name));
        let nodes = list.as_deref().and_then(expand_hosts);
        // The first task runs on the first node.
        let host = nodes.map(|mut nodes| match nodes.len() {
            1 => Ipv4Addr::LOCALHOST.to_string(),
            _ => nodes.swap_remove(0),
        });
        let found = Self::new("srun", index, count, format!("slurm-{job}.{step}"));
        let reserved = origin.text("SLURM_STEP_RESV_PORTS");
        let reserved = reserved.and_then(|ports| ports.split(['-', ',']).next()?.parse().ok());
        Some(Self { host, port: reserved.unwrap_or(found.port), ..found })
    }
}

/// The number that Kubernetes gives to a pod of an Indexed Job.
pub(super) fn completion_index() -> Option<u32> {
    env::var("JOB_COMPLETION_INDEX").ok()?.parse().ok()
}

/// A port by the name of a job.
fn port_of(job: &str) -> u16 {
    let mix = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let sum = job.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    FIRST_PORT + u16::try_from(sum % PORTS).unwrap_or(0)
}

/// The nearest process with this name among those that have started this one.
fn parent_named(name: &str) -> Option<u32> {
    let mut process = std::os::unix::process::parent_id();
    for _ in 0..MOST_PARENTS {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let value = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            line.map(str::trim)
        };
        // The system keeps 15 bytes of a name.
        if value("Name:")? == &name[..name.len().min(15)] {
            return Some(process);
        }
        process = value("PPid:")?.parse().ok()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{FIRST_PORT, LaunchEnvironment, ProcessOrigin, port_of};

    /// The environment with these variables, and of a child of a process with this name.
    fn read_below(parent: &str, variables: &[(&str, &str)]) -> Option<LaunchEnvironment> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let parent = |name: &str| (name == parent).then_some(5);
        LaunchEnvironment::read(&ProcessOrigin { variable: &variable, parent: &parent })
    }

    fn read(variables: &[(&str, &str)]) -> Option<LaunchEnvironment> {
        read_below("sh", variables)
    }

    fn place(found: &LaunchEnvironment) -> (&str, u32, u32, Option<&str>) {
        (found.launcher, found.index, found.count, found.host.as_deref())
    }

    const SLURM: [(&str, &str); 5] = [
        ("SLURM_PROCID", "3"),
        ("SLURM_STEP_NUM_TASKS", "8"),
        ("SLURM_JOB_ID", "71"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NODELIST", "gpu[07-08]"),
    ];

    #[test]
    fn each_launcher_says_number_count_and_host() {
        let torchrun = [
            ("RANK", "1"),
            ("WORLD_SIZE", "4"),
            ("MASTER_ADDR", "node1"),
            ("MASTER_PORT", "29500"),
        ];
        assert_eq!(place(&read(&torchrun).unwrap()), ("torchrun", 1, 4, Some("node1")));
        let here = [&torchrun[..], &[("LOCAL_WORLD_SIZE", "4")]].concat();
        assert_eq!(place(&read(&here).unwrap()), ("torchrun", 1, 4, Some("127.0.0.1")));

        assert_eq!(place(&read(&SLURM).unwrap()), ("srun", 3, 8, Some("gpu07")));
        let one = [&[("SLURM_STEP_NODELIST", "gpu07")], &SLURM[..4]].concat();
        assert_eq!(place(&read(&one).unwrap()), ("srun", 3, 8, Some("127.0.0.1")));

        let open_mpi = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "9"),
        ];
        assert_eq!(place(&read(&open_mpi).unwrap()), ("mpirun", 0, 2, Some("127.0.0.1")));
        assert_eq!(place(&read(&open_mpi[..2]).unwrap()), ("mpirun", 0, 2, None));

        let mpich = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")];
        let found = read_below("hydra_pmi_proxy", &mpich).unwrap();
        assert_eq!(place(&found), ("mpiexec", 1, 2, Some("127.0.0.1")));
        // Without the proxy, the processes could not find one name of their job, nor can others.
        assert_eq!(place(&read(&mpich[..2]).unwrap()), ("mpiexec", 1, 2, None));
        assert_eq!(place(&read(&mpich).unwrap()), ("mpiexec", 1, 2, None));
    }

    #[test]
    fn a_launcher_inside_of_slurm_is_found_before_it() {
        let mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        assert_eq!(read(&[&SLURM[..], &mpi].concat()).unwrap().launcher, "mpirun");
        // srun --mpi=pmi2 sets these two of MPICH.
        let pmi = [("PMI_RANK", "3"), ("PMI_SIZE", "8")];
        assert_eq!(read(&[&SLURM[..], &pmi].concat()).unwrap().launcher, "srun");
    }

    #[test]
    fn what_is_not_whole_is_no_launcher() {
        assert_eq!(read(&[]).map(|it| it.launcher), None);
        for variables in [
            &[("RANK", "0"), ("WORLD_SIZE", "2")][..],
            &[("RANK", "x"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")],
            &[("RANK", ""), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")],
            &[("PMI_RANK", "0")],
            &SLURM[..3],
        ] {
            assert_eq!(read(variables).map(|it| it.launcher), None, "{variables:?}");
        }
    }

    #[test]
    fn jobs_have_ports_of_their_own_that_systems_do_not_hand_out() {
        let ports: Vec<u16> = (0..100).map(|step| port_of(&format!("slurm-7.{step}"))).collect();
        assert!(ports.iter().all(|port| (FIRST_PORT..30_000).contains(port)));
        let mut different = ports.clone();
        different.sort_unstable();
        different.dedup();
        assert!(different.len() > 95, "{ports:?}");
        let again = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")];
        let first = read(&again).unwrap();
        let second = read(&[&again[..], &[("TORCHELASTIC_RESTART_COUNT", "1")]].concat()).unwrap();
        assert_ne!((first.port, first.job), (second.port, second.job));
    }
}
