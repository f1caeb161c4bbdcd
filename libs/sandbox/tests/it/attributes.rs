//! Modes, owners, times and attributes of files, which a script of the same user may change without Landlock being asked.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use sandbox::{BrokerRules, Confinement};

use crate::setup::{SandboxTestDir, text};

/// Scripts are of our own user, so that only their confinement keeps them from our files.
fn kept(place: &SandboxTestDir) -> Confinement {
    let broker = BrokerRules { attributes: Some(vec![place.dir.clone()]), ..BrokerRules::default() };
    let mut confinement = Confinement { broker, ..place.confined() };
    // A file that it may read is one that it has descriptors of.
    if let Some(files) = &mut confinement.files {
        files.read.push(place.root.path().join("readable"));
    }
    confinement
}

/// Everything that shows whether anything was changed: a change of whatever kind changes the last two.
fn state(path: &Path) -> (u32, u32, u32, i64, i64, i64) {
    let found = std::fs::metadata(path).unwrap();
    (found.mode(), found.uid(), found.gid(), found.mtime_nsec(), found.ctime(), found.ctime_nsec())
}

const ATTACKS: &str = r#"
import ctypes, errno, os, platform, sys, threading
secret, readable = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def call(number, *args):
    checked(libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args]))
def tries(name, way):
    try: way()
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS): print('failed', name, errno.errorcode.get(error.errno))
    else: print('changed', name)
os.symlink(secret, 'link')
os.symlink(os.path.dirname(secret), 'up')
o_path = os.open(secret, os.O_PATH)
fd = os.open(readable, os.O_RDONLY)
inside = os.path.join('up', os.path.basename(secret))
relative = os.path.relpath(secret)
for path in (secret, 'link', inside, relative, '/proc/self/fd/%d' % o_path, '/proc/thread-self/fd/%d' % o_path, '/dev/fd/%d' % o_path,
             '/proc/%d/fd/%d' % (os.getpid(), o_path)):
    tries('chmod ' + path, lambda: os.chmod(path, 0o666))
    tries('chown ' + path, lambda: os.chown(path, os.getuid(), os.getgid()))
    tries('utime ' + path, lambda: os.utime(path))
    tries('setxattr ' + path, lambda: os.setxattr(path, 'user.x', b'x'))
    tries('removexattr ' + path, lambda: os.removexattr(path, 'user.there'))
empty = ctypes.c_char_p(b'')
tries('fchmodat2', lambda: call(452, o_path, empty, 0o666, 0x1000))
tries('fchmodat2 link', lambda: call(452, -100, ctypes.c_char_p(secret.encode()), 0o666, 0x100))
tries('fchownat', lambda: checked(libc.fchownat(o_path, empty, os.getuid(), os.getgid(), 0x1000)))
tries('utimensat', lambda: checked(libc.utimensat(o_path, empty, None, 0x1000)))
tries('setxattrat', lambda: call(463, o_path, empty, 0x1000, ctypes.c_char_p(b'user.x'), 0, 0))
for name, way in {
    'fchmod': lambda: os.fchmod(fd, 0o666), 'fchown': lambda: os.fchown(fd, os.getuid(), os.getgid()),
    'futimens': lambda: os.utime(fd), 'fsetxattr': lambda: os.setxattr(fd, 'user.x', b'x'),
    'fremovexattr': lambda: os.removexattr(fd, 'user.there'),
}.items(): tries(name, way)
if platform.machine() == 'x86_64':
    path = ctypes.c_char_p(secret.encode())
    for name, number, args in (('chmod', 90, (path, 0o666)), ('chown', 92, (path, 0, 0)), ('lchown', 94, (path, 0, 0)),
                               ('utime', 132, (path, 0)), ('utimes', 235, (path, 0)), ('futimesat', 261, (-100, path, 0)),
                               ('futimesat fd', 261, (fd, 0, 0)), ('lsetxattr', 189, (path, ctypes.c_char_p(b'user.x'), ctypes.c_char_p(b'x'), 1, 0)),
                               ('lremovexattr', 198, (path, ctypes.c_char_p(b'user.there')))):
        tries('old ' + name, lambda: call(number, *args))
import fcntl, struct
tries('flags', lambda: fcntl.ioctl(fd, 0x40086602, struct.pack('l', 0x40)))
errors = []
def run(): tries('thread', lambda: os.chmod(secret, 0o666))
thread = threading.Thread(target=run); thread.start(); thread.join()
print('done')
"#;

#[tokio::test]
async fn nothing_outside_changes_its_mode_owner_times_or_attributes() {
    let place = SandboxTestDir::new();
    let paths = ["secret", "readable"].map(|name| place.root.path().join(name));
    for path in &paths {
        std::fs::write(path, "ours\n").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
        rustix::fs::setxattr(path, "user.there", b"x", rustix::fs::XattrFlags::empty()).unwrap();
    }
    let before = paths.each_ref().map(|path| state(path));
    let args = ["-I", "-c", ATTACKS, paths[0].to_str().unwrap(), paths[1].to_str().unwrap()];
    let outcome = place.run("/usr/bin/python3", &args, kept(&place)).await;
    assert_eq!((outcome.code, outcome.output.as_str()), (Some(0), "done\n"), "{outcome:?}");
    assert_eq!(paths.each_ref().map(|path| state(path)), before);
    for link in ["link", "up"] {
        std::fs::remove_file(place.dir.join(link)).unwrap();
    }
    let broken = Confinement { broker: BrokerRules::default(), ..kept(&place) };
    let broken = place.run("/usr/bin/python3", &args, broken).await;
    for way in ["chmod link", "fchmodat2", "fchmod", "fchownat", "utimensat", "thread", "fsetxattr"] {
        assert!(broken.output.lines().any(|line| line == format!("changed {way}")), "{way}: {broken:?}");
    }
    assert_ne!(paths.each_ref().map(|path| state(path)), before);
}

/// A call changes the file that its path names at first, even when the path names another one a moment later.
#[tokio::test]
async fn a_link_that_changes_meanwhile_leads_nowhere_else() {
    let place = SandboxTestDir::new();
    let secret = place.root.path().join("secret");
    std::fs::write(&secret, "ours\n").unwrap();
    let before = state(&secret);
    let attack = "import os, sys, threading\n\
                  open('own', 'w').close(); os.symlink('own', 'x'); done = False\n\
                  sys.setswitchinterval(1e-5)\n\
                  def flip():\n  while not done:\n    for to in (sys.argv[1], 'own'):\n      os.symlink(to, 'y'); os.rename('y', 'x')\n\
                  thread = threading.Thread(target=flip); thread.start()\n\
                  changed = refused = 0\n\
                  for n in range(1000000):\n  try: os.chmod('x', 0o600 + n % 64); changed += 1\n  except PermissionError: refused += 1\n\
                  \x20 if min(changed, refused) == 50: break\n\
                  done = True; thread.join(); print(changed >= 50, refused >= 50)";
    let args = ["-I", "-c", attack, secret.to_str().unwrap()];
    let outcome = place.run("/usr/bin/python3", &args, kept(&place)).await;
    assert_eq!(outcome.output, "True True\n", "{outcome:?}");
    assert_eq!(state(&secret), before);
}

#[tokio::test]
async fn a_script_changes_what_is_its_own() {
    let place = SandboxTestDir::new();
    let script = "set -e\n\
                  echo 'echo runs' > tool; chmod +x tool; ./tool\n\
                  mkdir -p d/e; echo text > d/e/file; chmod 640 d/e/file; touch -d '2001-02-03 04:05:06 UTC' d/e/file\n\
                  ln -s file d/e/link; touch -h -d '2002-02-03 04:05:06 UTC' d/e/link; chown -h \"$(id -u):$(id -g)\" d/e/link\n\
                  cp -pr d copy; stat -c '%a %Y' copy/e/file; tar -cf d.tar d; rm -rf d; tar -xpf d.tar; stat -c '%a %Y' d/e/file\n\
                  stat -c %Y d/e/link; install -m 711 tool other; stat -c %a other; chmod 700 .; mkdir -m 777 wide; stat -c %a wide\n";
    let outcome = place.shell(script, kept(&place)).await;
    let expected = "runs\n640 981173106\n640 981173106\n1012709106\n711\n777\n";
    assert_eq!(outcome.output, expected, "{outcome:?}");
    let script = "import os, tempfile, shutil\n\
                  f = open('file', 'w'); os.fchmod(f.fileno(), 0o640); os.utime('file', (1, 2)); os.setxattr('file', 'user.x', b'1')\n\
                  print(oct(os.stat('file').st_mode), os.stat('file').st_mtime, os.getxattr('file', 'user.x'), os.listxattr('file'))\n\
                  os.utime(f.fileno(), ns=(3, 4)); os.removexattr('file', 'user.x'); print(os.stat('file').st_mtime_ns, os.listxattr('file'))\n\
                  os.mkdir('sub'); at = os.open('sub', os.O_RDONLY); open('sub/a', 'w').close()\n\
                  os.chmod('a', 0o604, dir_fd=at); os.chmod('/proc/self/fd/%d' % f.fileno(), 0o606); print(oct(os.stat('sub/a').st_mode), oct(os.stat('file').st_mode))\n\
                  os.unlink('file'); os.fchmod(f.fileno(), 0o600); shutil.copy2('sub/a', 'b'); print(oct(os.stat('b').st_mode))\n\
                  for path in ('absent', ''):\n  try: os.chmod(path, 0o600)\n  except FileNotFoundError: print('absent')";
    let outcome = place.run("/usr/bin/python3", &["-I", "-c", script], kept(&place)).await;
    let expected = "0o100640 2.0 b'1' ['user.x']\n4 []\n0o100604 0o100606\n0o100604\nabsent\nabsent\n";
    assert_eq!(outcome.output, expected, "{outcome:?}");
    assert_eq!(text(&place.dir), place.dir.display().to_string());
}

const BORROWED: &str = r#"
import ctypes, errno, os, stat
libc = ctypes.CDLL(None, use_errno=True)
def tries(name, way):
    try: way()
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS): print('failed', name, errno.errorcode.get(error.errno))
    else: print('made', name)
def call(number, *args):
    if libc.syscall(ctypes.c_long(number), *args) < 0: raise OSError(ctypes.get_errno(), 'refused')
open('own', 'w').close()
own = os.open('own', os.O_RDWR)
for bit in (0o4000, 0o2000):
    mode = bit | 0o755
    tries('chmod', lambda: os.chmod('own', mode))
    tries('fchmod', lambda: os.fchmod(own, mode))
    tries('fchmodat2', lambda: call(452, -100, b'own', mode, 0))
    tries('open', lambda: os.open('opened%o' % bit, os.O_CREAT | os.O_WRONLY, mode))
    tries('tmpfile', lambda: os.open('.', os.O_TMPFILE | os.O_WRONLY, mode))
    tries('mknod', lambda: os.mknod('made%o' % bit, stat.S_IFREG | mode))
    how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, mode, 0)
    tries('openat2', lambda: call(437, -100, b'two%o' % bit, how, 24))
os.chmod('own', 0o755)
os.open('plain', os.O_CREAT | os.O_WRONLY, 0o755)
borrowed = [name for name in os.listdir('.') if os.stat(name).st_mode & 0o6000]
print('borrowed', borrowed)
"#;

#[tokio::test]
async fn no_script_makes_a_program_that_runs_as_its_user() {
    let place = SandboxTestDir::new();
    let outcome = place.python(BORROWED, kept(&place)).await;
    assert_eq!((outcome.code, outcome.output.trim()), (Some(0), "borrowed []"));
    // Without the layer each of them is made.
    let place = SandboxTestDir::new();
    let broken = place.python(BORROWED, Confinement { syscalls: None, ..place.confined() }).await;
    for way in ["chmod", "fchmod", "open", "tmpfile", "mknod", "openat2"] {
        assert!(broken.output.contains(&format!("made {way}\n")), "{way}: {}", broken.output);
    }
}
