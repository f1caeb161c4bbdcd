//! Seccomp: the system calls that scripts have no business with.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::confinement::SyscallRules;

/// Refused for every script: other processes' memory, mounts and namespaces, keys, the kernel's own
/// programs and modules, clocks, and ways around the layers above this one.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_perf_event_open,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    libc::SYS_mbind,
    libc::SYS_set_mempolicy,
    // System V objects outlive every job, and belong to no directory.
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    // Their number is limited for the whole machine: a job that takes them all keeps databases from starting.
    libc::SYS_io_setup,
    libc::SYS_mq_unlink,
    // A job that listens would be taken for the service that had the port before, and strangers could reach it.
    libc::SYS_listen,
];

/// System calls that are refused on one architecture only.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[libc::c_long] =
    &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt, libc::SYS_uselib];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[libc::c_long] = &[];

/// Every kind of namespace that `clone` can make.
const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// Puts the filters in force for this process and all that it starts.
pub(crate) fn restrict(allowed: SyscallRules) -> io::Result<()> {
    for filter in filters(allowed)? {
        seccompiler::apply_filter(&filter).map_err(io::Error::other)?;
    }
    #[cfg(target_arch = "x86_64")]
    seccompiler::apply_filter(&only_one_numbering()).map_err(io::Error::other)?;
    Ok(())
}

/// Ends a process that makes calls by the numbers of x32, which the kernel takes for the same architecture.
#[cfg(target_arch = "x86_64")]
fn only_one_numbering() -> BpfProgram {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const X32_BIT: u32 = 0x4000_0000;
    let step = |code, jt, jf, k| seccompiler::sock_filter { code, jt, jf, k };
    vec![
        step(LOAD_NUMBER, 0, 0, 0),
        step(JUMP_AT_LEAST, 0, 1, X32_BIT),
        step(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

/// One filter for each answer that refused calls get.
fn filters(allowed: SyscallRules) -> io::Result<[BpfProgram; 2]> {
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().chain(REFUSED_HERE).map(|number| (*number, Vec::new())).collect();
    refused.insert(libc::SYS_socket, sockets(allowed)?);
    refused.insert(libc::SYS_socketpair, pairs()?);
    // A kind of namespace in the flags, whichever else there are.
    let kinds = (0..64).map(|bit| 1_u64 << bit).filter(|bit| NAMESPACES & bit != 0);
    let clones: io::Result<Vec<_>> =
        kinds.map(|bit| rule(vec![condition(0, SeccompCmpOp::MaskedEq(bit), bit)?])).collect();
    refused.insert(libc::SYS_clone, clones?);
    // A process may change only its own limits and scheduling: changes to others of the same user could end
    // them, or affect the next job. Even its own number is refused, since filters do not know it.
    for own in [
        libc::SYS_prlimit64,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setattr,
    ] {
        refused.insert(own, vec![differs(0, 0)?]);
    }
    refused.insert(libc::SYS_setpriority, vec![differs(0, PRIO_PROCESS)?, differs(1, 0)?]);
    refused.insert(libc::SYS_ioprio_set, vec![differs(0, IOPRIO_WHO_PROCESS)?, differs(1, 0)?]);
    refused.insert(libc::SYS_setsockopt, options()?);
    refused.insert(libc::SYS_ioctl, requests()?);
    refused.extend(borrowed_rights()?);
    // The arguments of the first two are in memory, where no filter sees them. Libraries fall back on the older call of each.
    let unknown = [libc::SYS_clone3, libc::SYS_openat2, SETXATTRAT, REMOVEXATTRAT, FILE_SETATTR];
    let unknown = unknown.map(|number| (number, Vec::new())).into();
    Ok([program(refused, libc::EPERM)?, program(unknown, libc::ENOSYS)?])
}

/// Calls that give a file its mode, each with the argument that is the mode.
const MODE_CALLS: &[(libc::c_long, u8)] =
    &[(libc::SYS_fchmod, 1), (libc::SYS_fchmodat, 2), (FCHMODAT2, 2), (libc::SYS_mknodat, 2)];
/// Calls that may create a file, each with the arguments that are flags and mode.
const OPEN_CALLS: &[(libc::c_long, u8, u8)] = &[(libc::SYS_openat, 2, 3)];
#[cfg(target_arch = "x86_64")]
const OLD_MODE_CALLS: &[(libc::c_long, u8)] =
    &[(libc::SYS_chmod, 1), (libc::SYS_creat, 1), (libc::SYS_mknod, 1)];
#[cfg(target_arch = "x86_64")]
const OLD_OPEN_CALLS: &[(libc::c_long, u8, u8)] = &[(libc::SYS_open, 1, 2)];
#[cfg(not(target_arch = "x86_64"))]
const OLD_MODE_CALLS: &[(libc::c_long, u8)] = &[];
#[cfg(not(target_arch = "x86_64"))]
const OLD_OPEN_CALLS: &[(libc::c_long, u8, u8)] = &[];

/// Modes by which a program runs with the rights of its file's user or group (`chmod u+s`). Any other user with access to the
/// directory of a job would run it as the script's user, outside of everything that confines scripts.
fn borrowed_rights() -> io::Result<BTreeMap<i64, Vec<SeccompRule>>> {
    /// The part of `O_TMPFILE` that no other flag has.
    const TMPFILE: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;
    const BITS: [u32; 2] = [libc::S_ISUID, libc::S_ISGID];
    const CREATING: [i32; 2] = [libc::O_CREAT, TMPFILE];
    let has = |argument: u8, bit: u32| condition(argument, SeccompCmpOp::MaskedEq(bit.into()), bit.into());
    let mut refused = BTreeMap::new();
    for &(number, mode) in MODE_CALLS.iter().chain(OLD_MODE_CALLS) {
        let rules: io::Result<Vec<_>> = BITS.iter().map(|bit| rule(vec![has(mode, *bit)?])).collect();
        refused.insert(number, rules?);
    }
    for &(number, flags, mode) in OPEN_CALLS.iter().chain(OLD_OPEN_CALLS) {
        let pairs = CREATING.iter().flat_map(|flag| BITS.map(|bit| (flag.unsigned_abs(), bit)));
        // Without a file that is made there is no mode, and its argument is whatever was there before.
        let rules: io::Result<Vec<_>> =
            pairs.map(|(flag, bit)| rule(vec![has(flags, flag)?, has(mode, bit)?])).collect();
        refused.insert(number, rules?);
    }
    Ok(refused)
}

/// Newer than the C library's list.
const FCHMODAT2: libc::c_long = 452;
const SETXATTRAT: libc::c_long = 463;
const REMOVEXATTRAT: libc::c_long = 466;
const FILE_SETATTR: libc::c_long = 469;

/// Options by which a packet goes elsewhere than where it is sent to: routes that the sender chooses.
fn options() -> io::Result<Vec<SeccompRule>> {
    const IPV6_2292RTHDR: i32 = 5;
    const IPV6_FLOWLABEL_MGR: i32 = 32;
    let refused = [
        (libc::IPPROTO_IP, libc::IP_OPTIONS),
        (libc::IPPROTO_IPV6, IPV6_2292RTHDR),
        (libc::IPPROTO_IPV6, libc::IPV6_2292PKTOPTIONS),
        (libc::IPPROTO_IPV6, IPV6_FLOWLABEL_MGR),
        (libc::IPPROTO_IPV6, libc::IPV6_RTHDR),
    ];
    refused.into_iter().map(|(level, option)| rule(vec![equals(1, level)?, equals(2, option)?])).collect()
}

/// Requests that change what a file is by a descriptor that only reads it.
fn requests() -> io::Result<Vec<SeccompRule>> {
    const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
    const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
    let refused = [FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR];
    refused.into_iter().map(|request| rule(vec![condition(1, SeccompCmpOp::Eq, request.into())?])).collect()
}

fn equals(argument: u8, value: i32) -> io::Result<SeccompCondition> {
    condition(argument, SeccompCmpOp::Eq, value.unsigned_abs().into())
}

/// The arguments that mean one process, and with 0 behind them the one that calls.
const PRIO_PROCESS: u64 = 0;
const IOPRIO_WHO_PROCESS: u64 = 1;

/// An argument that is another than this.
fn differs(argument: u8, value: u64) -> io::Result<SeccompRule> {
    rule(vec![condition(argument, SeccompCmpOp::Ne, value)?])
}

/// The sockets that are refused: all of them, or all but those of TCP, UDP and pings. Others connect by options, or to
/// addresses that the other side names.
fn sockets(SyscallRules { network }: SyscallRules) -> io::Result<Vec<SeccompRule>> {
    if !network {
        return Ok(Vec::new());
    }
    let differs = |argument, value: i32| condition(argument, SeccompCmpOp::Ne, value.unsigned_abs().into());
    let kind = |kind| u64::from(i32::unsigned_abs(kind));
    let kinds = [kind(libc::SOCK_STREAM), kind(libc::SOCK_DGRAM)];
    let protocols =
        [libc::IPPROTO_IP, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_ICMP, libc::IPPROTO_ICMPV6];
    let mut refused = vec![
        rule(vec![differs(0, libc::AF_INET)?, differs(0, libc::AF_INET6)?])?,
        rule(protocols.map(|protocol| differs(2, protocol)).into_iter().collect::<io::Result<_>>()?)?,
    ];
    for kind in (0..=KIND).filter(|kind| !kinds.contains(kind)) {
        refused.push(rule(vec![condition(1, SeccompCmpOp::MaskedEq(KIND), kind)?])?);
    }
    Ok(refused)
}

/// The bits of a socket's type that say its kind.
const KIND: u64 = 0xf;

/// The pairs of sockets that are refused: all but those whose ends reach nothing but each other. A datagram can be
/// sent to any path, also from a pair; and to ask for another family has the kernel load it.
fn pairs() -> io::Result<Vec<SeccompRule>> {
    let tied = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(|kind| u64::from(kind.unsigned_abs()));
    let others = (0..=KIND).filter(|kind| !tied.contains(kind));
    let kinds = others.map(|kind| rule(vec![condition(1, SeccompCmpOp::MaskedEq(KIND), kind)?]));
    let family = differs(0, libc::AF_UNIX.unsigned_abs().into());
    std::iter::once(family).chain(kinds).collect()
}

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> io::Result<SeccompCondition> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value).map_err(io::Error::other)
}

fn rule(conditions: Vec<SeccompCondition>) -> io::Result<SeccompRule> {
    SeccompRule::new(conditions).map_err(io::Error::other)
}

fn program(refused: BTreeMap<i64, Vec<SeccompRule>>, answer: i32) -> io::Result<BpfProgram> {
    let refusal = SeccompAction::Errno(answer.unsigned_abs());
    let here = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    // A call of another architecture, which the numbers above are not of, ends the process.
    let filter =
        SeccompFilter::new(refused, SeccompAction::Allow, refusal, here).map_err(io::Error::other)?;
    filter.try_into().map_err(io::Error::other)
}
