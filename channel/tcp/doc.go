// Package tcp is the channel driver between processes and hosts over TCP.
package tcp
