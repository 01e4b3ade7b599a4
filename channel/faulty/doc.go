// Package faulty is a channel driver around another that loses, delays and cuts as
// a script says. It is for tests of what happens then.
//
// A script has one rule a line; what follows a # is a comment:
//
//	lose  2 -> 3 send 5        # the sixth message from rank 2 to rank 3; they count from 0
//	lose  2 -> 3 send 5..7     # and the two behind it
//	lose  2 -> 3 1%            # one message in a hundred
//	lose  2 -> 3               # all
//	delay 1 -> * 10ms          # every message of rank 1
//	delay 1 -> 0 50% 10ms      # half of them
//	cut   0 -> 1 after 3       # three messages pass, and with the next the link breaks
//
// as a grammar:
//
//	rule     = "lose" way [ which ] | "delay" way [ which ] duration | "cut" way "after" count
//	way      = [ "rank" ] end "->" [ "rank" ] end
//	end      = number | "*"
//	which    = "send" number [ ".." number ] | number "%"
//	duration = as time.ParseDuration takes it
//
// Ranks are those of the world. A message that is lost is sent as far as its sender
// can tell, and never received. A message that is delayed keeps those behind it on
// its way waiting, so that order stays; delays of several rules add up. With a cut
// the link is closed in both directions: what has not been received by then, and
// what is posted later, completes with kolo.ErrLost at both ends. A cut comes before
// a loss, a loss before a delay.
//
// The same seed and script give the same faults to the k-th message of a way,
// whenever it is sent and whatever else is. Where delays and cuts meet the other
// traffic of a run is a matter of time; in a testing/synctest bubble that is exact.
package faulty
