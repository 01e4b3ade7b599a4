//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kolo-ccl/kolo"
)

// hello is what the process that connects says, with the files of the segment and of
// its bell; welcome is the answer, with the file of the other bell.
type hello struct {
	Version  int
	Job      string
	Epoch    uint64
	From, To string // sockets
	self
}

type welcome struct {
	Wait    bool   // we are connecting to you ourselves: wait for that
	Refused string // why
	self
}

// self is what each says of itself.
type self struct {
	Process int
	Started uint64
	At      uint64 // where in its memory Text is, for the other to try
	Text    string
}

// note is what is said at the socket of two processes that are joined.
type note struct {
	Region  uint32 `json:",omitempty"` // an arena, with its file
	Size    int64  `json:",omitempty"`
	Board   uint64 `json:",omitempty"` // the group that Region is the board of
	Dropped uint32 `json:",omitempty"` // an arena that is no more
}

const (
	version     = 2
	joinWithin  = 10 * time.Second
	comesWithin = 2 * time.Second // from a hello that was taken to its peer's being up
	maxGuests   = 256             // handshakes at a time
)

var errHungUp = errors.New("the socket was closed")

func (d *Driver) myself() self {
	return self{d.me.Process, d.me.Started, uint64(uintptr(unsafe.Pointer(&d.probe[0]))), string(d.probe)}
}

// join connects to a peer. It ends when that is done or cannot be.
func (p *peer) join() {
	err := p.dial()
	if err == nil || nobodyThere(err) && p.comes() {
		return
	}
	p.fail(fmt.Errorf("%w: join %v by shared memory: %w", kolo.ErrLost, p, err))
}

// nobodyThere says whether a connection found no process, or one that closed it.
func nobodyThere(err error) bool {
	for _, e := range []error{unix.ECONNREFUSED, unix.ECONNRESET, unix.EPIPE, errHungUp} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// comes waits for a peer that has connected by itself: it may have had all that it wanted of this
// process, and closed its driver, while ours was on the way. What it has sent is to be received.
func (p *peer) comes() bool {
	late := time.NewTimer(comesWithin)
	defer late.Stop()
	select {
	case <-p.rose:
		return true
	case <-late.C:
		return false
	}
}

func (p *peer) dial() error {
	d := p.d
	if !d.me.reaches(p.address) {
		return errors.New("it is of another host, user or network namespace")
	}
	sock, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: p.Socket, Net: "unixpacket"})
	if err != nil {
		return err
	}
	if !d.talk(sock) {
		_ = sock.Close() // nothing was said
		return errors.New("this process has closed its shm driver")
	}
	w, wait, err := p.greet(sock)
	d.quiet(sock)
	if err != nil || wait {
		_ = sock.Close() // all was said
	}
	if err != nil {
		return err
	}
	if !wait {
		return p.joined(w)
	}
	late := time.NewTimer(joinWithin)
	defer late.Stop()
	select {
	case <-p.rose:
		return nil
	case <-late.C:
		return errors.New("it did not connect in time")
	}
}

// talk notes a socket in a handshake, which Close ends.
func (d *Driver) talk(sock *net.UnixConn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.talking) >= maxGuests {
		return false
	}
	d.talking[sock] = true
	return sock.SetDeadline(time.Now().Add(joinWithin)) == nil
}

func (d *Driver) quiet(sock *net.UnixConn) {
	d.mu.Lock()
	delete(d.talking, sock)
	d.mu.Unlock()
	_ = sock.SetDeadline(time.Time{}) // a closed socket shows at the next read
}

// greet makes the segment and offers it.
func (p *peer) greet(sock *net.UnixConn) (w wiring, wait bool, err error) {
	d := p.d
	credit, err := owner(sock)
	if err != nil {
		return w, false, err
	}
	mem, file, err := makeShared("kolo-rings", 2*halfBytes)
	if err != nil {
		return w, false, err
	}
	defer file.Close()
	defer func() {
		if err != nil || wait {
			_ = unix.Munmap(mem) // it is a mapping
		}
	}()
	h := hello{Version: version, Job: d.config.Job, Epoch: d.config.Epoch, From: d.me.Socket, To: p.Socket, self: d.myself()}
	if err := say(sock, h, file, d.bellFile); err != nil {
		return w, false, err
	}
	var answer welcome
	fds, err := hear(sock, &answer)
	if err == nil && answer.Refused != "" {
		err = fmt.Errorf("it refuses: %.200s", answer.Refused)
	}
	if err == nil && !answer.Wait && len(fds) != 1 {
		err = fmt.Errorf("%w: %d files in the answer", errCorrupt, len(fds))
	}
	if err != nil || answer.Wait {
		closeAll(fds)
		return w, answer.Wait, err
	}
	bellMem, err := mapShared(fds[0], bellBytes, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return w, false, err
	}
	w = wiring{mem: mem, bellMem: bellMem, to: newArea(mem), from: newArea(mem[halfBytes:]), bell: newBell(bellMem), sock: sock}
	d.examine(&w, int(credit.Pid), answer.self)
	return w, false, nil
}

// examine takes hold of the peer's process and tries whether its memory can be read.
func (d *Driver) examine(w *wiring, pid int, s self) {
	p, err := seize(pid, s.Started)
	if w.process = p; err == nil {
		err = d.try(p, s)
	}
	if w.reads = err == nil; !w.reads {
		w.refusal = refusalOf(err)
	}
}

// try reads the text that a process says is in its memory.
func (d *Driver) try(p process, s self) error {
	switch {
	case d.private:
		return fmt.Errorf("read of process %d: %w", p.pid, unix.EPERM)
	case len(s.Text) != len(d.probe):
		return fmt.Errorf("%w: a text of %d bytes to try", errCorrupt, len(s.Text))
	}
	got := make([]byte, len(s.Text))
	err := p.read([]unix.Iovec{{Base: &got[0], Len: uint64(len(got))}}, []unix.RemoteIovec{{Base: uintptr(s.At), Len: len(got)}})
	if err == nil && (string(got) != s.Text || !p.alive()) {
		err = errUnseen
	}
	return err
}

// Reads says whether the private memory of a rank's process can be read, as the handshake
// has found it.
func (d *Driver) Reads(rank kolo.Rank) (known bool, refusal error) {
	d.mu.Lock()
	p := d.byRank[rank]
	d.mu.Unlock()
	if p == nil {
		return false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state == up, p.refusal
}

// joined takes the peer into use, and a goroutine for its socket.
func (p *peer) joined(w wiring) error {
	if !p.rise(w) {
		for _, m := range [][]byte{w.mem, w.bellMem} {
			_ = unix.Munmap(m) // it is a mapping
		}
		w.process.close()
		_ = w.sock.Close() // the other end learns that it is refused
		return nil
	}
	// ended by the end of the peer, or by Close, which close the socket
	p.d.work.Go(func() { p.attend(w.sock) })
	p.d.arenaMu.Lock()
	defer p.d.arenaMu.Unlock()
	p.told = true // of later ones by whoever makes them
	for _, a := range *p.d.arenas.Load() {
		p.tell(note{Region: a.number, Size: int64(len(a.mem)), Board: a.board}, a.file)
	}
	return nil
}

// attend hears what the peer says at the socket, until that ends: the kernel closes it
// when the process dies.
func (p *peer) attend(sock *net.UnixConn) {
	for {
		var n note
		fds, err := hear(sock, &n)
		if err == nil {
			fd := -1
			if len(fds) == 1 && n.Region != 0 {
				fd, fds = fds[0], nil
			}
			closeAll(fds)
			err = p.learn(n, fd)
		}
		if err != nil {
			p.drain() // what was written before is whole
			p.d.deafen(p)
			p.fail(fmt.Errorf("%w: %v has ended or closed its driver: %w", kolo.ErrLost, p, err))
			p.d.lookAtBoards()
			return
		}
		if n.Region != 0 {
			p.d.lookAtBoards() // one may have waited for it
		}
	}
}

// tell says something at the socket of a peer that is up; one that does not hear is
// lost anyway.
func (p *peer) tell(n note, file *os.File) {
	p.mu.Lock()
	sock := p.sock
	p.mu.Unlock()
	if sock == nil {
		return
	}
	files := []*os.File{}
	if file != nil {
		files = append(files, file)
	}
	_ = sock.SetWriteDeadline(time.Now().Add(joinWithin)) // a closed socket shows in the next line
	_ = say(sock, n, files...)                            // without it the peer reads by other ways
}

// accept takes connections of peers.
func (d *Driver) accept() {
	for {
		sock, err := d.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors, perhaps; somebody gives one back
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if !d.talk(sock) {
			_ = sock.Close() // too many, or closed
			continue
		}
		// ended by the handshake's deadline or by Close, which closes the socket
		d.work.Go(func() { d.receive(sock) })
	}
}

// receive does the handshake with who has connected.
func (d *Driver) receive(sock *net.UnixConn) {
	p, w, err := d.admit(sock)
	d.quiet(sock)
	if err != nil || p == nil {
		_ = sock.Close() // all was said
		return
	}
	_ = p.joined(w) // it says so itself
}

// admit judges a hello. It returns no peer where that is to wait.
func (d *Driver) admit(sock *net.UnixConn) (*peer, wiring, error) {
	var w wiring
	credit, err := owner(sock)
	if err != nil {
		return nil, w, err
	}
	var h hello
	fds, err := hear(sock, &h)
	if err != nil {
		return nil, w, err
	}
	p, err := d.known(h, int(credit.Uid))
	if err == nil && len(fds) != 2 {
		err = fmt.Errorf("%w: %d files in a hello", errCorrupt, len(fds))
	}
	if err == nil && !p.yields() {
		closeAll(fds)
		return nil, w, say(sock, welcome{Wait: true})
	}
	if err != nil {
		closeAll(fds)
		return nil, w, errors.Join(err, say(sock, welcome{Refused: err.Error()}))
	}
	if w, err = d.take(sock, fds, h, int(credit.Pid)); err != nil { // nobody else will join it now
		p.fail(fmt.Errorf("%w: %v has joined and gone: %w", kolo.ErrLost, p, err))
	}
	return p, w, err
}

// take maps what a hello brought, and answers it.
func (d *Driver) take(sock *net.UnixConn, fds []int, h hello, pid int) (w wiring, err error) {
	mem, err := mapShared(fds[0], 2*halfBytes, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		closeAll(fds[1:])
		return w, err
	}
	bellMem, err := mapShared(fds[1], bellBytes, unix.PROT_READ|unix.PROT_WRITE)
	if err == nil {
		if err = say(sock, welcome{self: d.myself()}, d.bellFile); err != nil {
			_ = unix.Munmap(bellMem) // it is a mapping
		}
	}
	if err != nil {
		_ = unix.Munmap(mem) // it is a mapping
		return w, err
	}
	w = wiring{mem: mem, bellMem: bellMem, to: newArea(mem[halfBytes:]), from: newArea(mem), bell: newBell(bellMem), sock: sock}
	d.examine(&w, pid, h.self)
	return w, nil
}

// known is the peer that a hello is of, or why it is not welcome.
func (d *Driver) known(h hello, user int) (*peer, error) {
	switch {
	case h.Version != version:
		return nil, fmt.Errorf("this process speaks version %d of shm, not %d", version, h.Version)
	case user != d.me.User:
		return nil, fmt.Errorf("this process belongs to user %d, not to user %d", d.me.User, user)
	case h.To != d.me.Socket:
		return nil, errors.New("that was for another process")
	case h.Job != d.config.Job:
		return nil, fmt.Errorf("this process is of job %q, not of %q", d.config.Job, h.Job)
	case h.Epoch != d.config.Epoch:
		return nil, fmt.Errorf("this process is of epoch %d, not of %d", d.config.Epoch, h.Epoch)
	}
	late := time.NewTimer(joinWithin)
	defer late.Stop()
	select {
	case <-d.met:
	case <-late.C:
		return nil, errors.New("this process does not know its peers yet")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peers[h.From]
	if p == nil || d.closed || p.Process != h.Process || p.Started != h.Started {
		return nil, errors.New("this process has not been told of that one")
	}
	return p, nil
}

// yields says whether the peer's connection is the one that counts, where both
// processes connect at a time: that of the smaller socket. One that comes when they are
// joined is the other one, and late.
func (p *peer) yields() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state >= up || p.state == joining && p.d.me.Socket < p.Socket {
		return false
	}
	if p.state == idle {
		p.state = joining
	}
	return true
}

// owner is who is at the other end of a socket, as the kernel knows it.
func owner(sock *net.UnixConn) (*unix.Ucred, error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return nil, err
	}
	var credit *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { credit, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return credit, errors.Join(err, failed)
}

// say writes one record, with files.
func say(sock *net.UnixConn, v any, files ...*os.File) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err = sock.WriteMsgUnix(text, rights, nil)
	return err
}

// hear reads one record and its files, which are the caller's, none after an error.
func hear(sock *net.UnixConn, v any) (fds []int, err error) {
	text, rights := make([]byte, maxText), make([]byte, 256)
	n, rn, flags, _, err := sock.ReadMsgUnix(text, rights)
	list, bad := syscall.ParseSocketControlMessage(rights[:max(rn, 0)])
	for i := range list {
		if got, err := syscall.ParseUnixRights(&list[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	switch {
	case errors.Is(err, io.EOF): // or an empty record, perhaps with files
		err = fmt.Errorf("%w: %w", errHungUp, err)
	case err != nil:
	case bad != nil || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = fmt.Errorf("%w: too much at the socket", errCorrupt)
	default:
		in := json.NewDecoder(bytes.NewReader(text[:n]))
		in.DisallowUnknownFields()
		err = in.Decode(v)
	}
	if err != nil {
		closeAll(fds)
		return nil, err
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // it was not used
	}
}

// deafen takes a peer from those that look looks at.
func (d *Driver) deafen(p *peer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*d.ears.Load()), func(q *peer) bool { return q == p })
	d.ears.Store(&list)
}
