package cluster

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/kolo-ccl/kolo"
)

// frame is a gRPC message of ours: bytes as they are. There is no schema to generate
// code from: what is in them is JSON where it is seldom, and package rank's own where it
// is not.
type frame []byte

// codec is the gRPC codec of frames.
type codec struct{}

// Name is the content subtype on the wire.
func (codec) Name() string { return "kolo" }

// Marshal gives the bytes of a frame.
func (codec) Marshal(v any) ([]byte, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("%w: %T is no frame", kolo.ErrArgument, v)
	}
	return *f, nil
}

// Unmarshal makes a frame of bytes, which it copies: gRPC uses its own again.
func (codec) Unmarshal(b []byte, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("%w: %T is no frame", kolo.ErrArgument, v)
	}
	*f = append((*f)[:0:0], b...)
	return nil
}

// The two services. A process has the stream Link for each other process; who serves a
// rendezvous has Meet.
const (
	methodMeet = "/kolo.Cluster/Meet"
	methodLink = "/kolo.Cluster/Link"
)

// stream is either end of a gRPC stream.
type stream interface {
	Context() context.Context
	SendMsg(m any) error
	RecvMsg(m any) error
}

func send(s stream, b []byte) error {
	f := frame(b)
	return s.SendMsg(&f)
}

func receive(s stream) ([]byte, error) {
	var f frame
	err := s.RecvMsg(&f)
	return f, err
}

// services says what a server offers; nil is what it does not.
type services struct {
	meet, link func(s stream) error
}

// describe is the gRPC description of services.
func (s services) describe() *grpc.ServiceDesc {
	d := &grpc.ServiceDesc{ServiceName: "kolo.Cluster", HandlerType: (*any)(nil)}
	add := func(name string, f func(stream) error) {
		if f != nil {
			d.Streams = append(d.Streams, grpc.StreamDesc{StreamName: name, ServerStreams: true, ClientStreams: true,
				Handler: func(_ any, st grpc.ServerStream) error { return f(st) }})
		}
	}
	add("Meet", s.meet)
	add("Link", s.link)
	return d
}

var streamDesc = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
